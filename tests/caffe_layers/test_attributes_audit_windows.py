"""Convolution, deconvolution and pooling in the configurations of Caffe's own tests that no other file here holds.

Those tests fix what users rely on: axes without space, many axes, general and special paths alike, masks.
"""

from __future__ import annotations

import numpy as np
import pytest

caffe = pytest.importorskip("caffe")

from clgraft.caffe_layers.swap import swap_back, swap_net
from tests.caffe_layers import caffe_nets
from tests.caffe_layers.caffe_nets import TEST, TRAIN, close, compare, gradients, inputs, layer, load


def convolution(fields: str) -> str:
    return f"convolution_param {{ num_output: 4 {fields} }}"


PLANES, BODIES = (2, 6, 7, 8), (2, 6, 5, 6, 4)
CONVOLUTIONS = {
    "dilated, two bottoms": ("kernel_size: 3 dilation: 2", {"x": PLANES, "z": PLANES}),
    "dilated, 3-D": ("kernel_size: 3 dilation: 2 pad: 1 pad: 2 pad: 1", {"x": BODIES}),
    "grouped, 3-D": ("kernel_size: 3 stride: 2 group: 2", {"x": BODIES}),
    "1x1x1": ("kernel_size: 1 bias_term: false", {"x": BODIES}),
    "grouped, general path": ("kernel_size: 3 stride: 2 group: 2 force_nd_im2col: true", {"x": PLANES}),
    "1x1, general path": ("kernel_size: 1 force_nd_im2col: true", {"x": PLANES}),
    "1-D": ("kernel_size: 3 stride: 2 pad: 1 dilation: 2", {"x": (2, 6, 17)}),
    "1-D, two bottoms": ("kernel_size: 4 group: 2", {"x": (2, 6, 9), "z": (2, 6, 9)}),
    "a number per axis": (
        "kernel_size: 3 pad: 1 pad: 0 stride: 2 stride: 1 dilation: 1 dilation: 3",
        {"x": (2, 6, 8, 9)},
    ),
    "pad_h alone": ("kernel_size: 3 pad_h: 2", {"x": PLANES}),
    "pad_w alone": ("kernel_size: 3 pad_w: 1", {"x": PLANES}),
    "axis 2, two bottoms": ("kernel_size: 3 axis: 2 group: 2", {"x": (2, 3, 4, 6, 5), "z": (2, 3, 4, 6, 5)}),
    "no spatial axes, two bottoms": ("axis: 2 group: 2 bias_term: false", {"x": (2, 3, 4), "z": (2, 3, 4)}),
    "no spatial axes, idle numbers": ("kernel_size: 3 stride: 2 pad: 1", {"x": (5, 7)}),
    "no spatial axes of five": ("axis: -1", {"x": (2, 2, 3, 2, 6)}),
    "a vector": ("axis: 0", {"x": (6,)}),
    "a vector with space": ("axis: 0 kernel_size: 2", {"x": (6, 9)}),
    "as large as the input": ("kernel_h: 7 kernel_w: 8", {"x": PLANES}),
    "padding beyond the kernel": ("kernel_size: 2 pad: 3 stride: 3", {"x": PLANES}),
    "rows and columns apart": ("kernel_h: 3 kernel_w: 1 stride_h: 2 stride_w: 1", {"x": (1, 6, 9, 4)}),
}


@pytest.mark.parametrize("kind", ["Convolution", "Deconvolution"])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolution_equals_native(name, kind):
    fields, shapes = CONVOLUTIONS[name]
    if kind == "Deconvolution":
        fields = fields.replace("pad: 3 ", "pad: 1 ")  # more would leave nothing
    compare(kind, convolution(fields), shapes, tops=[f"y{i}" for i in range(len(shapes))])


@pytest.mark.parametrize("first", ["kernel_h: 3 kernel_w: 1", "kernel_h: 1 kernel_w: 3"])
def test_a_separable_filter_is_two_filters(first):
    """Sobel's filter, whole and as a column and a row."""
    column, row = np.array([1, 2, 1], np.float32), np.array([-1, 0, 1], np.float32)
    second = "kernel_h: 1 kernel_w: 3" if "kernel_h: 3" in first else "kernel_h: 3 kernel_w: 1"
    single = "convolution_param { num_output: 1 bias_term: false "
    x = np.random.default_rng(0).standard_normal((2, 1, 9, 11)).astype(np.float32)
    whole = load(inputs({"x": x.shape}) + layer("Convolution", single + "kernel_size: 3 }", ours=True))
    parts = load(
        inputs({"x": x.shape})
        + layer("Convolution", f"{single} {first} }}", ours=True, name="one", tops=["h"])
        + layer("Convolution", f"{single} {second} }}", ours=True, name="two", bottoms=["h"])
    )
    whole.params["op"][0].data[...] = np.outer(column, row)
    for name in ("one", "two"):
        blob = parts.params[name][0]
        blob.data[...] = (column if blob.data.shape[2] == 3 else row).reshape(blob.data.shape)
    for net in (whole, parts):
        net.blobs["x"].data[...] = x
        net.forward()
    close(parts.blobs["y"].data, whole.blobs["y"].data, "y", 2e-6)


@pytest.mark.python_layers
@pytest.mark.parametrize("kind", ["Convolution", "Deconvolution"])
@pytest.mark.parametrize(("bottoms", "tops"), [("xz", "y"), ("x", "yv")])
def test_every_bottom_has_a_top(bottoms, tops, kind):
    text = inputs(dict.fromkeys(bottoms, PLANES))
    with pytest.raises(Exception, match=rf"got {len(tops)} top blobs, expected {len(bottoms)}, one per bottom"):
        load(text + layer(kind, convolution("kernel_size: 2"), ours=True, bottoms=list(bottoms), tops=list(tops)))


@pytest.mark.python_layers
def test_four_spatial_axes_are_refused():
    with pytest.raises(Exception, match=r"\[conv\] got in_size \(3, 4, 3, 4\), expected 1 to 3 spatial axes"):
        load(inputs({"x": (2, 3, 3, 4, 3, 4)}) + layer("Convolution", convolution("kernel_size: 2"), ours=True))


POOLING = {
    "square": ("kernel_size: 2", (2, 2, 3, 5)),
    "rows": ("kernel_h: 3 kernel_w: 2", (2, 2, 6, 6)),
    "columns": ("kernel_h: 2 kernel_w: 3", (2, 2, 6, 6)),
    "padded": ("kernel_size: 3 stride: 2 pad: 2", (1, 2, 3, 3)),
    "tall and wide": ("kernel_h: 3 kernel_w: 4 stride: 2 pad: 1", (2, 3, 5, 9)),
    "much padding": ("kernel_size: 5 stride: 2 pad: 4", (2, 3, 3, 4)),
    "stride beyond the kernel": ("kernel_size: 2 stride: 3", (2, 3, 8, 8)),
    "stride beyond the kernel, padded": ("kernel_size: 2 stride: 4 pad: 1", (2, 3, 9, 9)),
    "one row": ("kernel_h: 1 kernel_w: 3 stride_h: 1 stride_w: 2", (2, 3, 1, 12)),
    "whole planes": ("global_pooling: true", (2, 3, 5, 4)),
}


@pytest.mark.parametrize("pool", ["MAX", "AVE"])
@pytest.mark.parametrize("name", POOLING)
def test_pooling_equals_native(name, pool):
    fields, shape = POOLING[name]
    compare("Pooling", f"pooling_param {{ pool: {pool} {fields} }}", {"x": shape})


def test_maxima_below_the_padding_equal_native():
    x = -5 - np.random.default_rng(0).random((2, 3, 3, 4)).astype(np.float32)
    compare("Pooling", "pooling_param { kernel_size: 3 stride: 2 pad: 2 }", {"x": x.shape}, data={"x": x})


@pytest.mark.parametrize("phase", [TRAIN, TEST])
@pytest.mark.parametrize("name", POOLING)
def test_mask_equals_native(name, phase):
    fields, shape = POOLING[name]
    x = np.random.default_rng(4).integers(-4, 5, shape).astype(np.float32)  # ties: the first of them counts
    compare("Pooling", f"pooling_param {{ {fields} }}", {"x": shape}, tops=["y", "mask"], phase=phase, data={"x": x})


def test_a_mask_of_nothing_is_minus_one_as_in_caffe():
    x = np.random.default_rng(0).standard_normal((1, 2, 6, 6)).astype(np.float32)
    x[0, 0, :2, :2] = np.nan
    x[0, 1, 2:4, 2:4] = -np.inf
    masks = []
    for ours in (False, True):
        text = layer("Pooling", "pooling_param { kernel_size: 2 stride: 2 }", ours=ours, tops=["y", "mask"])
        net = load(inputs({"x": x.shape}) + text)
        net.blobs["x"].data[...] = x
        net.forward()
        masks.append(net.blobs["mask"].data.copy())
    np.testing.assert_array_equal(masks[1], masks[0])
    assert masks[1][0, 0, 0, 0] == masks[1][0, 1, 1, 1] == -1


@pytest.mark.parametrize("phase", [TRAIN, TEST])
@pytest.mark.parametrize("kind", ["Power", "ReLU", "Sigmoid"])
def test_the_gradient_of_maxima_that_a_layer_in_place_has_overwritten(kind, phase):
    parameters = {"Power": "power_param { scale: 2 shift: 1 }", "ReLU": "relu_param { negative_slope: 0.3 }"}.get(
        kind, ""
    )
    random = np.random.default_rng(0)
    x, dy = random.standard_normal((2, 3, 8, 8)).astype(np.float32), random.standard_normal((2, 3, 4, 4))
    results = []
    for ours in (False, True):
        # Caffe's own Power in place reads its gradient from memory that it has overwritten: where it is replaced as
        # well, ours is compared with what Caffe computes in two places
        top = "z" if caffe_nets.mode == "replaced" and kind == "Power" and not ours else "y"
        net = load(
            inputs({"x": x.shape})
            + layer("Pooling", "pooling_param { kernel_size: 2 stride: 2 }", ours=ours)
            + layer(kind, parameters, ours=False, name="after", bottoms=["y"], tops=[top])
            + "force_backward: true",
            phase,
        )
        found = gradients(net, {"x": x}, {top: dy})
        results.append({name.replace(f"{top} ", "y "): values for name, values in found.items()})
    for name, values in results[0].items():
        close(results[1][name], values, name)


def test_an_average_of_nothing_is_zero():
    """Such windows begin beyond the input: in Caffe they are 0 / 0, or 0 by a negative number of elements."""
    x = np.ones((1, 1, 3, 6), np.float32)
    found = []
    for ours in (False, True):
        text = inputs({"x": x.shape}) + layer(
            "Pooling", "pooling_param { pool: AVE kernel_size: 2 stride: 3 }", ours=ours
        )
        net = load(text + "force_backward: true")
        found.append(gradients(net, {"x": x}, {"y": np.ones((1, 1, 2, 3), np.float32)}))
    native, ours = found
    assert native["y data"].shape == ours["y data"].shape == (1, 1, 2, 3)
    held = np.array([[[[True, True, False], [False, False, False]]]])
    assert (ours["y data"] == held).all()
    np.testing.assert_array_equal(ours["y data"][held], native["y data"][held])
    assert ours["x diff"].sum() == 2


def test_a_mask_is_swapped():
    text = inputs({"x": (2, 3, 9, 9)}) + layer(
        "Pooling", "pooling_param { kernel_size: 3 stride: 2 }", ours=False, tops="ym"
    )
    swapped, report = swap_net(text)
    assert [row.became for row in report.swapped] == ["OclPooling"] and swap_back(swapped)[0] == text
    found = []
    for source in (text, swapped):
        net = load(source, TEST)
        net.blobs["x"].data[...] = np.random.default_rng(0).standard_normal((2, 3, 9, 9))
        net.forward()
        found.append(net.blobs["m"].data.copy())
    np.testing.assert_array_equal(*found)
    assert found[0].max() > 9
