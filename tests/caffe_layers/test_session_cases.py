"""Nets without Caffe against Caffe: layers in the configurations of its own tests, and nets; outputs and gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

caffe = pytest.importorskip("caffe")

from clgraft.caffe_layers.data.sources import batches
from clgraft.caffe_layers.nets import hdf5
from clgraft.caffe_layers.nets.net import CaffeNet, read_net
from clgraft.core.model import NetSession
from tests.caffe_layers import test_attributes_audit as layers
from tests.caffe_layers import test_attributes_audit_windows as windows
from tests.caffe_layers.caffe_nets import TEST, TRAIN, close, gradients, inputs, layer, load
from tests.caffe_layers.net_comparison import compare_nets
from tests.caffe_layers.net_styles import STYLES, small
from tests.caffe_layers.session_nets import SessionNet


def cases() -> dict[str, tuple[str, str, dict, dict[str, Any]]]:
    """Return the cases of the files that compare layers with Caffe's: type, parameters, shapes, and more."""
    found: dict[str, tuple[str, str, dict, dict[str, Any]]] = {}
    for name, (kind, text) in layers.ELEMENTS.items():
        found[name] = kind, text, {"x": layers.MATRIX}, {}
    for name, (kind, text) in layers.OF_POSITIVE.items():
        found[f"positive {name}"] = kind, text, {"x": layers.MATRIX}, {"data": {"x": layers.POSITIVE}}
    for name, (fields, shapes) in layers.AFFINE.items():
        for kind, more in (("Scale", "bias_term: true"), ("Bias", "")):
            for top in "yx":
                text = f"{kind.lower()}_param {{ {fields} {more} }}"
                found[f"{kind} {name} {top}"] = kind, text, shapes, {"tops": [top]}
    for name, fields in layers.ELTWISE.items():
        shapes = dict.fromkeys("abc", (2, 3, 2, 2, 3))
        found[f"eltwise {name}"] = "Eltwise", f"eltwise_param {{ {fields} }}", shapes, {}
    for name, (kind, text, shape) in layers.NORMS.items():
        found[name] = kind, text, {"x": shape}, {}
    for name, (kind, text, shapes, tops) in layers.PARTS.items():
        found[name] = kind, text, shapes, {"tops": list(tops)}
    for name, (fields, shapes) in windows.CONVOLUTIONS.items():
        tops = [f"y{i}" for i in range(len(shapes))]
        for kind in ("Convolution", "Deconvolution"):
            own = fields.replace("pad: 3 ", "pad: 1 ") if kind == "Deconvolution" else fields
            found[f"{kind} {name}"] = kind, windows.convolution(own), shapes, {"tops": tops}
    for name, (fields, shape) in windows.POOLING.items():
        for pool in ("MAX", "AVE"):
            found[f"{pool} {name}"] = "Pooling", f"pooling_param {{ pool: {pool} {fields} }}", {"x": shape}, {}
        x = np.random.default_rng(4).integers(-4, 5, shape).astype(np.float32)
        for phase in (TRAIN, TEST):
            more = {"tops": ["y", "mask"], "phase": phase, "data": {"x": x}}
            found[f"mask {name} {phase}"] = "Pooling", f"pooling_param {{ {fields} }}", {"x": shape}, more
    return found


CASES = cases()


@pytest.mark.parametrize("name", CASES)
def test_a_layer(name):
    kind, parameters, shapes, more = CASES[name]
    tops, phase, data = more.get("tops", ["y"]), more.get("phase", TRAIN), more.get("data")
    text = (
        inputs(shapes) + layer(kind, parameters, ours=False, bottoms=list(shapes), tops=tops) + "force_backward: true"
    )
    native, ours = load(text, phase), SessionNet(text, phase)
    random = np.random.default_rng(3)
    starts = [random.uniform(-1, 1, blob.data.shape).astype(np.float32) for blob in native.params.get("op", [])]
    dw = [random.standard_normal(blob.shape).astype(np.float32) for blob in starts]
    for net in (native, ours):
        assert len(net.params.get("op", [])) == len(starts)
        for blob, values in zip(net.params.get("op", []), starts):
            assert blob.data.shape == values.shape
            blob.data[...] = values
    x = data or {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    dy = {top: random.standard_normal(native.blobs[top].data.shape).astype(np.float32) for top in tops}
    expected, got = gradients(native, x, dy, dw, poison=False), gradients(ours, x, dy, dw)
    assert got.keys() == expected.keys()
    for each, values in expected.items():
        close(got[each], values, each)


@pytest.mark.parametrize("style", STYLES)
def test_a_net(style, tmp_path):
    assert not compare_nets(small(style), str(tmp_path / "native.caffemodel"), session=True).failures


def numbers(count: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(6).integers(0, count, shape).astype(np.float32)


GOES_ON = np.array([[0, 0, 0], [1, 0, 1], [1, 1, 0], [1, 1, 1]], np.float32)  # steps of three streams
RECURRENT = {
    "": {"x": (4, 3, 5), "on": GOES_ON},
    "static": {"x": (4, 3, 2, 3), "on": GOES_ON, "s": (3, 2, 2)},
    "hidden": {"x": (4, 3, 5), "on": GOES_ON, "h": (1, 3, 6)},
}
MEMORY = {"static": {"x": (4, 3, 5), "on": GOES_ON, "s": (3, 4), "h": (1, 3, 6), "c": (1, 3, 6)}, "": RECURRENT[""]}
PROBABILITIES = np.random.default_rng(7).uniform(0.01, 1, (5, 4)).astype(np.float32)
GAINS = {
    "x": (4, 3, 2),
    "label": numbers(3, 4, 1, 2),
    "gains": np.random.default_rng(8).random((1, 1, 3, 3), np.float32),
}
# type, parameters, bottoms with shapes or arrays, tops
RARE: dict[str, tuple[str, str, dict[str, Any], int]] = {
    **{
        f"argmax {fields}": ("ArgMax", f"argmax_param {{ {fields} }}", {"x": numbers(5, *shape)}, 1)
        for fields, shape in (
            ("", (3, 4, 2)),
            ("top_k: 3 out_max_val: true", (3, 4, 2, 2, 2)),
            ("axis: 1 top_k: 2", (3, 4, 2)),
            ("axis: -1 top_k: 2 out_max_val: true", (3, 4, 5)),
        )
    },
    "batch reindex": ("BatchReindex", "", {"x": (4, 3, 2), "row": numbers(4, 7)}, 1),
    "embed": (
        "Embed",
        "embed_param { input_dim: 7 num_output: 5 weight_filler { type: 'gaussian' } }",
        {"x": numbers(7, 4, 3)},
        1,
    ),
    "embed without bias": (
        "Embed",
        "embed_param { input_dim: 7 num_output: 5 bias_term: false }",
        {"x": numbers(7, 4)},
        1,
    ),
    "parameter": ("Parameter", "parameter_param { shape { dim: 3 dim: 4 } }", {}, 1),
    **{
        f"im2col {fields}": ("Im2col", f"convolution_param {{ {fields} }}", {"x": (2, 3, 7, 6)}, 1)
        for fields in ("kernel_size: 3", "kernel_h: 3 kernel_w: 2 stride: 2 pad: 1", "kernel_size: 2 dilation: 2")
    },
    **{
        f"spp {pool} {height}": (
            "SPP",
            f"spp_param {{ pool: {pool} pyramid_height: {height} }}",
            {"x": (2, 3, 9, 11)},
            1,
        )
        for pool, height in (("MAX", 1), ("MAX", 3), ("AVE", 3))
    },
    **{
        f"{norm} hinge": ("HingeLoss", f"hinge_loss_param {{ norm: {norm} }}", {"x": (5, 4), "y": numbers(4, 5)}, 1)
        for norm in ("L1", "L2")
    },
    **{
        f"contrast {old}": (
            "ContrastiveLoss",
            f"contrastive_loss_param {{ margin: 2.5 legacy_version: {old} }} loss_weight: 2",
            {"a": (6, 3), "b": (6, 3), "y": numbers(2, 6)},
            1,
        )
        for old in ("true", "false")
    },
    "logistic": ("MultinomialLogisticLoss", "", {"x": PROBABILITIES, "label": numbers(4, 5)}, 1),
    **{
        f"infogain {fields}": ("InfogainLoss", f"loss_param {{ {fields} }} loss_weight: 3 loss_weight: 0", GAINS, 2)
        for fields in ("", "ignore_label: 1", "ignore_label: 2 normalization: FULL")
    },
    **{
        f"rnn {name}": (
            "RNN",
            f"recurrent_param {{ num_output: 6 expose_hidden: {'true' if name == 'hidden' else 'false'} }}",
            bottoms,
            1 + (name == "hidden"),
        )
        for name, bottoms in RECURRENT.items()
    },
    **{
        f"lstm {name}": (
            "LSTM",
            f"recurrent_param {{ num_output: 6 expose_hidden: {'true' if name else 'false'} }}",
            bottoms,
            3 if name else 1,
        )
        for name, bottoms in MEMORY.items()
    },
    "lstm unit": ("LSTMUnit", "", {"c": (1, 3, 4), "x": (1, 3, 16), "on": GOES_ON[1:2]}, 2),
}


def test_rows_that_a_filter_chooses_and_a_file_of_them(tmp_path):
    """Filter and HDF5Output, whose file Caffe closes with the net."""
    h5py = pytest.importorskip("h5py")
    text = inputs({"x": (5, 3, 2), "z": (5,), "s": (5, 1)})
    text += layer("Filter", "", ours=False, name="f", bottoms=["x", "z", "s"], tops=["a", "b"])
    text += "layer { name: 'h' type: 'HDF5Output' bottom: 'x' bottom: 'z' hdf5_output_param { file_name: '%s' } }"
    random = np.random.default_rng(3)
    data = {"x": random.standard_normal((5, 3, 2)), "z": random.standard_normal(5)}
    session = NetSession(CaffeNet(read_net((text % "none").encode())))
    for number, selector in enumerate(([0, 2, 0, -1, 1], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1])):
        path = str(tmp_path / f"{number}.h5")
        native, data["s"] = load(text % path, TEST), np.array(selector).reshape(5, 1)
        for name, array in data.items():
            native.blobs[name].data[...] = array
        native.forward()
        found = session.run({name: array.astype("f4") for name, array in data.items()})
        for top in "ab":
            np.testing.assert_array_equal(found[top], native.blobs[top].data)
        del native
        hdf5.write_rows(f"{path}.ours", found["x"], found["z"])
        with h5py.File(path, "r") as expected, h5py.File(f"{path}.ours", "r") as own:
            assert sorted(expected) == sorted(own)
            for name in own:
                assert own[name].dtype == expected[name].dtype
                np.testing.assert_array_equal(own[name][()], expected[name][()])


WINDOWS = {
    "": "",
    "padded": "context_pad: 3",
    "square": "crop_mode: 'square'",
    "both": "context_pad: 2 crop_mode: 'square' scale: 0.25",
}


@pytest.mark.parametrize("name", WINDOWS)
def test_windows_of_images(name, tmp_path):
    """One window of each kind, so that both draw the same ones; sizes that are interpolated, and 2 to 1."""
    image_module = pytest.importorskip("PIL.Image")
    if "WindowData" not in caffe.layer_type_list():
        pytest.skip("this Caffe reads no images")
    pixels = np.random.default_rng(1).integers(0, 256, (40, 50, 3), dtype=np.uint8)
    image_module.fromarray(pixels).save(tmp_path / "a.png")
    for corners in ("3 4 20 39 30 2 49 20", "0 0 29 29 10 5 24 19"):
        four = corners.split()
        lines = f"2 0.9 {' '.join(four[:4])}\n1 0.1 {' '.join(four[4:])}"
        (tmp_path / "list").write_text(f"# 0\n{tmp_path}/a.png\n3 40 50\n2\n{lines}\n")
        own = f"source: '{tmp_path}/list' batch_size: 2 fg_fraction: 0.5 {WINDOWS[name]}"
        text = "layer { name: 'd' type: 'WindowData' top: 'x' top: 'y' transform_param { crop_size: 15 mean_value: 9 }"
        text += f" window_data_param {{ {own} }} }}"
        native = load(text, TRAIN)
        native.forward()
        batch = next(batches(read_net(text.encode()).layer[0], True, np.random.default_rng(1)))
        np.testing.assert_array_equal(batch["y"], native.blobs["y"].data)
        np.testing.assert_array_equal(batch["x"], native.blobs["x"].data)


UNDIFFERENTIATED = ("ArgMax",)
GRADIENTS = "xabchs"


@pytest.mark.parametrize("name", RARE)
def test_a_rare_layer(name):
    """Tops, a loss of them, and gradients."""
    kind, parameters, bottoms, count = RARE[name]
    if kind not in caffe.layer_type_list():
        pytest.skip(f"this Caffe has no {kind}")
    random, tops = np.random.default_rng(3), [f"top{i}" for i in range(count)]
    shapes = {each: value.shape if isinstance(value, np.ndarray) else value for each, value in bottoms.items()}
    learns = [each for each in bottoms if each in GRADIENTS and kind not in ("Embed", *UNDIFFERENTIATED)]
    text = inputs({f"{each}_in" if each in learns else each: shape for each, shape in shapes.items()})
    for each in learns:  # what is learned before a layer has it compute gradients
        text += layer("Bias", "bias_param { num_axes: 0 }", ours=False, name=each, bottoms=[f"{each}_in"], tops=[each])
    text += layer(kind, parameters, ours=False, bottoms=list(bottoms), tops=tops)
    data = {
        f"{each}_in" if each in learns else each: value
        if isinstance(value, np.ndarray)
        else random.standard_normal(value).astype(np.float32)
        for each, value in bottoms.items()
    }
    if kind not in UNDIFFERENTIATED and "Loss" not in kind:
        sizes = {f"t{top}": load(text).blobs[top].data.shape for top in tops}
        data.update({each: random.standard_normal(size).astype(np.float32) for each, size in sizes.items()})
        text = inputs(sizes) + text
        for top in tops:
            text += layer("EuclideanLoss", ours=False, name=f"l{top}", bottoms=[top, f"t{top}"], tops=[f"loss{top}"])
    nets = load(text), SessionNet(text, inner=tuple(tops))
    starts = [random.uniform(-1, 1, blob.data.shape).astype(np.float32) for blob in nets[0].params.get("op", [])]
    for net in nets:
        for blob, start in zip(net.params.get("op", []), starts):
            assert blob.data.shape == start.shape
            blob.data[...], blob.diff[...] = start, 0
        for each, values in data.items():
            net.blobs[each].data[...] = values
        net.forward()
        if kind not in UNDIFFERENTIATED:
            net.backward()
    native, ours = nets
    for top in (each for each in native.blobs if each not in data):
        if top in ours.blobs:
            close(ours.blobs[top].data, native.blobs[top].data, top)
    for each in learns if kind not in UNDIFFERENTIATED else ():
        close(ours.blobs[f"{each}_in"].diff, native.blobs[each].diff, f"{each} diff")
    for place, blob in enumerate(native.params.get("op", [])):
        close(ours.params["op"][place].diff, blob.diff, f"blob {place} diff")
