"""Caffe's ``.caffemodel`` without Caffe: every form, and files that are damaged or want too much."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from clgraft.caffe_layers.nets.weights import LayerWeights, read_caffemodel, write_caffemodel
from clgraft.caffe_layers.prototxt import schema
from clgraft.core.model import ModelError
from tests.plugins.models.damaged import cut, mutated, survives

FILES = Path(__file__).parent / "files"
RNG = np.random.default_rng(4)
LAYERS = [
    LayerWeights("data", "Input", ()),
    LayerWeights("conv", "Convolution", (RNG.standard_normal((4, 3, 3, 3)).astype("f4"), np.arange(4, dtype="f4"))),
    LayerWeights("scalar", "PReLU", (np.float32(0.25).reshape(()),)),
    LayerWeights("fc", "InnerProduct", (RNG.standard_normal((5, 400)), np.zeros((0,), "f4"))),
]


def same(found, expected) -> None:
    assert [(one.name, one.type, len(one.blobs)) for one in found] == [
        (one.name, one.type, len(one.blobs)) for one in expected
    ]
    for one, other in zip(found, expected):
        for a, b in zip(one.blobs, other.blobs):
            assert a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def as_bytes(layers, folder, name="net") -> bytes:
    write_caffemodel(folder / "x.caffemodel", layers, name)
    return (folder / "x.caffemodel").read_bytes()


def message(text: str) -> bytes:
    return schema.parse("NetParameter", text).SerializeToString()


def test_what_is_written_comes_back_and_is_caffes_message(tmp_path) -> None:
    data = as_bytes(LAYERS, tmp_path)
    same(read_caffemodel(data), LAYERS)
    same(read_caffemodel(tmp_path / "x.caffemodel"), LAYERS)
    net = schema.parse_bytes("NetParameter", data)
    assert net.name == "net" and [layer.type for layer in net.layer] == [one.type for one in LAYERS]
    for layer, one in zip(net.layer, LAYERS):
        for blob, array in zip(layer.blobs, one.blobs):
            assert tuple(blob.shape.dim) == array.shape
            assert np.array_equal(np.array(blob.double_data if array.dtype == "f8" else blob.data), array.reshape(-1))
    assert net.SerializeToString() == data
    with pytest.raises(ModelError, match="float16 in layer 'half'"):
        write_caffemodel(tmp_path / "y", [LayerWeights("half", "", (np.zeros(3, np.float16),))])


V1 = """
name: "old" layers { name: "conv" type: CONVOLUTION bottom: "data" top: "conv"
  blobs { num: 2 channels: 1 height: 1 width: 2 data: 1 data: 2 data: 3 data: 4 diff: 9 diff: 9 diff: 9 diff: 9 }
  blobs { num: 1 channels: 1 height: 1 width: 2 double_data: 5 double_data: 6 } blobs_lr: 1
  convolution_param { num_output: 2 } }
layers { name: "relu" type: RELU bottom: "conv" top: "conv" }
"""
V0 = """
layers { layer { name: "fc" type: "innerproduct" num_output: 2
  blobs { num: 1 channels: 1 height: 2 width: 1 data: 1 data: 2 } } bottom: "data" top: "fc" }
"""
OLD = {
    V1: [
        LayerWeights("conv", "", (np.float32([[[[1, 2]]], [[[3, 4]]]]), np.float64([[[[5, 6]]]]))),
        LayerWeights("relu", "", ()),
    ],
    V0: [LayerWeights("fc", "", (np.float32([[[[1], [2]]]]),))],
}


@pytest.mark.parametrize("text", OLD, ids=["V1", "V0"])
def test_older_nets_in_both_forms(text) -> None:
    same(read_caffemodel(message(text)), OLD[text])
    same(read_caffemodel(("# a comment\n" + text).encode()), OLD[text])


def test_numbers_that_lie_in_a_field_each() -> None:
    """Readers of protobuf take them, whatever a schema says; old sizes come before a shape, as in Caffe."""
    number = b"\x2d" + np.float32(2.5).tobytes()
    blob = b"\x3a\x02\x08\x02" + number + number
    layer = b"\x0a\x01a" + b"\x3a" + bytes([len(blob)]) + blob
    data = b"\xa2\x06" + bytes([len(layer)]) + layer
    (found,) = read_caffemodel(data)
    assert found.name == "a" and found.blobs[0].tolist() == [2.5, 2.5]
    text = 'layer { name: "a" blobs { shape { dim: 7 } num: 1 channels: 1 height: 1 width: 2 data: 1 data: 2 } }'
    assert read_caffemodel(message(text))[0].blobs[0].shape == (1, 1, 1, 2)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "no layers"),
        (b"\x89HDF\r\n\x1a\n" + bytes(50), "in HDF5"),
        (b"\x00", "a field 0"),
        (b"\xa2\x06\x7f", "it is cut off"),
        (b"\xa2\x06" + b"\xff" * 12, "that does not end"),
        (b"\xa3\x06", "kind 3"),
        (message('layer { name: "a" blobs { shape { dim: 3 } data: 1 } }'), "of shape (3,), expected as many"),
        (message('layer { name: "a" blobs { shape { dim: -1 } data: 1 } }'), "of shape (-1,)"),
        (message('layer { name: "a" blobs { shape { dim: 4611686018427387904 dim: 0 } } }'), "fewer elements"),
        (message('layer { name: "a" blobs { shape { ' + "dim: 1 " * 40 + "} data: 1 } }"), "more than 32 axes"),
        (b'layer { name: "a" blobs { data: x } }', "no net in text form"),
        (b"name: 'only a name'", "without layers"),
        (b"\xa2\x06\x04\x0a\x02\xff\xfe", "expected UTF-8"),
    ],
)
def test_damaged_files_are_named(data, words) -> None:
    with pytest.raises(ModelError) as caught:
        read_caffemodel(data)
    assert words in str(caught.value)


def test_a_missing_file(tmp_path) -> None:
    with pytest.raises(ModelError, match="which cannot be read: No such file"):
        read_caffemodel(tmp_path / "none.caffemodel")


def test_cut_and_changed_files_are_read_or_refused(tmp_path) -> None:
    small = [LAYERS[0], LAYERS[1], LAYERS[2]]
    data = as_bytes(small, tmp_path)
    whole = read_caffemodel(data)
    for part in cut(data):
        if survives(read_caffemodel, part):  # it ends after a layer
            assert len(read_caffemodel(part)) < len(whole)
    for seed, each in enumerate((data, message(V1), message(V0), V1.encode())):
        found = [survives(read_caffemodel, made) for made in mutated(each, 300, seed)]
        assert any(found) and not all(found)


def test_hdf5_that_is_damaged_or_hostile(tmp_path) -> None:
    """In a process of its own, whose memory is bounded: the library of HDF5 reads these files."""
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "a.h5"
    layers = [LAYERS[1], LayerWeights("a/b", "", LAYERS[1].blobs), LayerWeights("a", "", LAYERS[2].blobs)]
    write_caffemodel(path, layers)
    found = {one.name: one.blobs for one in read_caffemodel(path)}
    assert all(np.array_equal(a, b) for one in layers for a, b in zip(one.blobs, found.pop(one.name))) and not found
    (tmp_path / "secret").write_bytes(bytes(64))
    hostile = {
        "huge": lambda g: g.create_dataset("0", (2**40,), "f4", chunks=(1024,)),
        "packed": lambda g: g.create_dataset("0", (2**28,), "f4", chunks=(2**20,), compression="gzip"),
        "link": lambda g: g.__setitem__("0", h5py.ExternalLink(str(path), "/data/a/0")),
        "soft": lambda g: g.__setitem__("0", h5py.SoftLink("/data/other")),
        "file": lambda g: g.create_dataset("0", (16,), "f4", external=[(str(tmp_path / "secret"), 0, 64)]),
        "words": lambda g: g.create_dataset("0", data=np.bytes_(b"abc")),
        "gap": lambda g: g.create_dataset("1", data=np.zeros(3, "f4")),
    }
    for name, make in hostile.items():
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            make(file.create_group("data/a"))
    for number, made in enumerate(mutated(path.read_bytes(), 60, 3)):
        (tmp_path / f"mutant{number}.h5").write_bytes(made)
    done = subprocess.run([sys.executable, "-c", READER, str(tmp_path)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    found = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert found.pop("a.h5") == "read" and {found[f"{name}.h5"] for name in hostile} == {"refused"}
    assert set(found.values()) == {"read", "refused"}


READER = """
import resource, sys, time
from pathlib import Path
from clgraft.caffe_layers.nets.weights import read_caffemodel
from clgraft.core.model import ModelError
import h5py
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for path in sorted(Path(sys.argv[1]).glob("*.h5")):
    begin = time.perf_counter()
    try:
        read_caffemodel(path)
        print(path.name, "read")
    except ModelError as error:
        assert str(error).startswith("[caffe] got"), error
        print(path.name, "refused")
    assert time.perf_counter() - begin < 5
assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**16, "64 MiB"
"""


def test_a_file_of_caffe() -> None:
    """What Caffe has written (see written.py)."""
    layers = read_caffemodel(FILES / "small.caffemodel")
    found = {f"{one.name}{i}": blob for one in layers for i, blob in enumerate(one.blobs)}
    with np.load(FILES / "small_caffe.npz") as expected:
        assert set(found) == set(expected.files)
        for name, array in found.items():
            assert array.dtype == np.float32 and np.array_equal(array, expected[name])
