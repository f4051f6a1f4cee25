"""MXNet's ``.params`` without MXNet: every form and type, and files that are damaged or want too much."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from clgraft.core.model import ModelError
from clgraft.plugins.models.bare import bare
from tests.plugins.models.damaged import cut, mutated, survives

with bare("clgraft.mxnet_ops"):
    from clgraft.mxnet_ops.symbols import params

FILES = Path(__file__).parent / "files"
TYPES = [
    *("float32", "float64", "float16", "uint8", "int32", "int8", "int64", "bool"),
    *("int16", "uint16", "uint32", "uint64"),
]
RNG = np.random.default_rng(3)
ARRAYS = {f"arg:{name}": (RNG.standard_normal((2, 3)) * 3).astype(name) for name in TYPES}
ARRAYS["aux:moving_mean"] = np.arange(5, dtype=np.float32)
ARRAYS["bare"] = np.array([1, 2, 0x3F80], np.uint16).view(params.BFLOAT16)


def as_bytes(arrays, folder) -> bytes:
    params.write_params(folder / "x.params", arrays)
    return (folder / "x.params").read_bytes()


def same(found, expected) -> None:
    assert list(found) == list(expected)
    for name, array in expected.items():
        assert found[name].dtype == array.dtype and found[name].shape == array.shape
        assert found[name].tobytes() == array.tobytes()


def in_list(array: bytes, names: bytes = struct.pack("<QQ", 1, 1) + b"w") -> bytes:
    """Return a file of one array in bytes."""
    return struct.pack("<QQQ", 0x112, 0, 1) + array + names


FOUR = np.arange(4, dtype=np.float32).reshape(2, 2)
TAIL = struct.pack("<iii", 1, 0, 0) + FOUR.tobytes()  # device, type, elements
FORMS = {
    "V3": struct.pack("<Iiiqq", params.V3, 0, 2, 2, 2) + TAIL,
    "V2": struct.pack("<Iiiqq", params.V2, 0, 2, 2, 2) + TAIL,
    "V1": struct.pack("<Iiqq", params.V1, 2, 2, 2) + TAIL,
    "oldest": struct.pack("<III", 2, 2, 2) + TAIL,
}


def test_every_type_and_name_comes_back(tmp_path) -> None:
    data = as_bytes(ARRAYS, tmp_path)
    same(params.read_params(data), ARRAYS)
    same(params.read_params(tmp_path / "x.params"), ARRAYS)
    for array in params.read_params(data).values():
        assert array.flags.writeable and array.flags.aligned


def test_scalars_arrays_without_elements_and_lists(tmp_path) -> None:
    arrays = {"one": np.float32(3).reshape(()), "none": np.zeros((0, 4), np.int64), "more": FOUR}
    same(params.read_params(as_bytes(arrays, tmp_path)), arrays)
    found = params.read_params(as_bytes([FOUR, FOUR + 1], tmp_path))
    assert isinstance(found, list) and np.array_equal(found[1], FOUR + 1)
    assert params.read_params(as_bytes({}, tmp_path)) == []
    with pytest.raises(ModelError, match="2 arrays without names"):
        params.read_named(as_bytes([FOUR, FOUR], tmp_path))


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_read(form) -> None:
    found = params.read_params(in_list(FORMS[form]))
    assert np.array_equal(found["w"], FOUR)


def test_names_of_a_net(tmp_path) -> None:
    data = as_bytes({"arg:w": FOUR, "aux:v": FOUR, "u": FOUR}, tmp_path)
    assert list(params.read_named(data)) == ["w", "v", "u"]
    with pytest.raises(ModelError, match="two arrays 'w'"):
        params.read_named(as_bytes({"arg:w": FOUR, "w": FOUR}, tmp_path))


def test_big_endian_and_strided_arrays_are_written_plainly(tmp_path) -> None:
    wide = np.arange(12.0).reshape(3, 4)
    found = params.read_params(as_bytes({"a": wide.T[::2].astype(">f8"), "b": wide[:, ::2]}, tmp_path))
    assert np.array_equal(found["a"], wide.T[::2]) and np.array_equal(found["b"], wide[:, ::2])
    with pytest.raises(ModelError, match="'c' of type complex64"):
        params.write_params(tmp_path / "y.params", {"c": np.zeros(3, np.complex64)})


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (struct.pack("<Iii", params.V2, 1, 2), "array 0 of storage row_sparse, expected dense"),
        (struct.pack("<Iii", params.V2, 2, 2), "array 0 of storage csr, expected dense"),
        (struct.pack("<Iii", params.V2, 0, 0), "of shape ()"),
        (struct.pack("<Iii", params.V3, 0, -1), "-1 axes"),
        (struct.pack("<Iiiq", params.V3, 0, 1, -1), "of shape (-1,)"),
        (struct.pack("<Iii", params.V2, 0, 2**30), f"{2**30} axes"),
        (struct.pack("<Iiiqq", params.V2, 0, 2, 2**40, 2**40) + TAIL, "it is damaged"),
        (struct.pack("<Iiiqq", params.V2, 0, 2, 2**62, 0) + TAIL, "fewer elements"),
        (struct.pack("<Iiiqq", params.V2, 0, 2, 2, 2) + struct.pack("<iii", 1, 0, 99), "of type 99"),
        (struct.pack("<I", 0xF993FACB), "of form 0xf993facb"),
    ],
)
def test_what_cannot_be_read_is_named(array, words) -> None:
    with pytest.raises(ModelError) as caught:
        params.read_params(in_list(array))
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "0 bytes left for the header"),
        (b"PK\3\4" + bytes(40), "at its beginning"),
        (struct.pack("<QQQ", 0x112, 0, 2**60), f"{2**60} arrays in 0 bytes"),
        (struct.pack("<QQQQ", 0x112, 0, 0, 2**60), f"{2**60} names"),
        (in_list(FORMS["V2"], struct.pack("<QQ", 1, 2**50)), "bytes left for a name"),
        (in_list(FORMS["V2"], struct.pack("<QQ", 1, 1) + b"\xff"), "expected UTF-8"),
        (in_list(FORMS["V2"]) + b"x", "1 bytes after its end"),
    ],
)
def test_damaged_lists_are_named(data, words) -> None:
    with pytest.raises(ModelError) as caught:
        params.read_params(data)
    assert words in str(caught.value)


def test_a_missing_file(tmp_path) -> None:
    with pytest.raises(ModelError, match="which cannot be read: No such file"):
        params.read_params(tmp_path / "none.params")


def test_cut_files_are_refused(tmp_path) -> None:
    data = as_bytes(ARRAYS, tmp_path)
    assert not any(survives(params.read_params, part) for part in cut(data, 3))
    for form in FORMS.values():
        assert not any(survives(params.read_params, part) for part in cut(in_list(form)))


def test_changed_files_are_read_or_refused(tmp_path) -> None:
    for seed, data in enumerate([as_bytes(ARRAYS, tmp_path), *map(in_list, FORMS.values())]):
        found = [survives(params.read_params, each) for each in mutated(data, 400, seed)]
        assert any(found) and not all(found)


@pytest.mark.parametrize("name", ["types", "numpy_shapes", "list"])
def test_files_of_mxnet(name) -> None:
    """Files that MXNet 1.9.1 has written (see written.py)."""
    found = params.read_params(FILES / f"{name}.params")
    with np.load(FILES / f"{name}.npz") as expected:
        arrays = dict(enumerate(found)) if isinstance(found, list) else found
        assert len(arrays) == len(expected.files)
        for key, array in arrays.items():
            assert array.dtype == expected[str(key)].dtype and np.array_equal(array, expected[str(key)])


@pytest.mark.parametrize("name", ["types", "numpy_shapes", "list"])
def test_files_are_written_as_mxnet_writes_them(name, tmp_path) -> None:
    path = FILES / f"{name}.params"
    assert as_bytes(params.read_params(path), tmp_path) == path.read_bytes()
