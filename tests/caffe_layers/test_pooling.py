"""Pooling layers against the native ones."""

from __future__ import annotations

import numpy as np
import pytest

from clgraft.caffe_layers.prototxt import schema
from clgraft.caffe_layers.swap import swap_net

caffe = pytest.importorskip("caffe")

from tests.adapted_windows import adapted
from tests.caffe_layers.caffe_nets import TEST, compare, gradients, inputs, layer, load

WINDOWS = {
    "pair": ("kernel_size: 2 stride: 2", (2, 3, 8, 10)),
    "ceil": ("kernel_size: 3 stride: 2", (2, 3, 8, 11)),
    "ceil, padded": ("kernel_size: 2 stride: 2 pad: 1", (2, 3, 7, 8)),
    "overlapping": ("kernel_size: 3 pad: 1", (1, 2, 14, 19)),
    "stem": ("kernel_size: 3 stride: 2 pad: 1", (1, 4, 23, 37)),
    "height and width": ("kernel_h: 3 kernel_w: 2 stride_h: 1 stride_w: 3 pad_h: 2 pad_w: 1", (2, 2, 6, 20)),
    "width only": ("kernel_h: 1 kernel_w: 5 pad_h: 0 pad_w: 2", (2, 2, 3, 9)),
    "larger than the input": ("kernel_size: 3 stride: 2", (2, 3, 2, 2)),
    "one pixel": ("kernel_size: 1", (2, 3, 1, 1)),
    "all": ("global_pooling: true", (3, 5, 7, 6)),
    "all, engine": ("global_pooling: true engine: CAFFE", (2, 5, 3, 20)),
}


def has_round_mode() -> bool:
    """Return whether the native layer can round down: the pip wheel's cannot."""
    return any(field.name == "round_mode" for field in caffe.proto.caffe_pb2.PoolingParameter.DESCRIPTOR.fields)


@pytest.mark.parametrize("pool", ["MAX", "AVE"])
@pytest.mark.parametrize("name", WINDOWS)
def test_pooling_equals_native(name, pool):
    fields, shape = WINDOWS[name]
    compare("Pooling", f"pooling_param {{ pool: {pool} {fields} }}", {"x": shape})


@pytest.mark.parametrize("name", ["pair", "ceil", "overlapping", "stem", "all"])
def test_ties_go_to_the_first_as_in_caffe(name):
    fields, shape = WINDOWS[name]
    x = np.random.default_rng(0).integers(0, 3, shape).astype(np.float32)
    compare("Pooling", f"pooling_param {{ {fields} }}", {"x": shape}, data={"x": x})


def forward(fields, x):
    """Return y of the native layer and of ours."""
    found = []
    for ours in (False, True):
        net = load(inputs({"x": x.shape}) + layer("Pooling", f"pooling_param {{ {fields} }}", ours=ours))
        net.blobs["x"].data[...] = x
        net.forward()
        found.append(net.blobs["y"].data.copy())
    return found


def test_not_a_number_is_no_maximum_as_in_caffe():
    x = np.random.default_rng(0).standard_normal((2, 3, 8, 20)).astype(np.float32)
    x[np.random.default_rng(1).random(x.shape) < 0.4] = np.nan
    np.testing.assert_array_equal(*forward("kernel_size: 2 stride: 2", x))


def test_windows_that_begin_beyond_the_input():
    """Caffe writes the gradient of such a maximum in front of the array: only forward can be compared."""
    x = np.random.default_rng(0).standard_normal((2, 3, 3, 6)).astype(np.float32)
    np.testing.assert_array_equal(*forward("kernel_size: 2 stride: 3", x))
    net = load(
        inputs({"x": x.shape})
        + layer("Pooling", "pooling_param { kernel_size: 2 stride: 3 }", ours=True)
        + "force_backward: true"
    )
    got = gradients(net, {"x": x}, {"y": np.ones((2, 3, 2, 3), np.float32)})["x diff"]
    assert got[:, :, :2, :2].sum() == got[:, :, :2, 3:5].sum() == 6
    assert got.sum() == 12


@pytest.mark.parametrize("fields", ["kernel_size: 3 stride: 2 pad: 1", "kernel_size: 2 stride: 2"])
@pytest.mark.parametrize("pool", ["MAX", "AVE"])
def test_round_mode(pool, fields):
    """Compared with Caffe's layer where that can round down, else with the part of its result that then counts."""
    shape = (2, 3, 8, 9) if "pad" in fields else (2, 3, 7, 9)
    parameters = f"pooling_param {{ pool: {pool} {fields} round_mode: FLOOR }}"
    if has_round_mode():
        compare("Pooling", parameters, {"x": shape})
        return
    net = load(inputs({"x": shape}) + layer("Pooling", parameters, ours=True))
    assert net.blobs["y"].data.shape == ((2, 3, 4, 5) if "pad" in fields else (2, 3, 3, 4))
    native = load(inputs({"x": shape}) + layer("Pooling", parameters.replace("round_mode: FLOOR", ""), ours=False))
    native.blobs["x"].data[...] = net.blobs["x"].data[...] = np.random.default_rng(0).standard_normal(shape)
    net.forward()
    native.forward()
    y = net.blobs["y"].data
    np.testing.assert_allclose(y, native.blobs["y"].data[:, :, : y.shape[2], : y.shape[3]], rtol=1e-6)


@pytest.mark.python_layers  # Caffe cannot read the field
@pytest.mark.parametrize("pool", ["MAX", "AVE"])
def test_ceil_mode_of_forks_is_round_mode(pool):
    """DenseNet-121's prototxt says `ceil_mode: false`, which stock Caffe cannot read."""
    x = np.random.default_rng(1).standard_normal((2, 3, 8, 9)).astype(np.float32)
    results = {}
    for fields in ("ceil_mode: false", "round_mode: FLOOR", "ceil_mode: true", ""):
        parameters = f"pooling_param {{ pool: {pool} kernel_size: 3 stride: 2 pad: 1 {fields} }}"
        net = load(inputs({"x": x.shape}) + layer("Pooling", parameters, ours=True))
        net.blobs["x"].data[...] = x
        net.forward()
        results[fields] = net.blobs["y"].data.copy()
    np.testing.assert_array_equal(results["ceil_mode: false"], results["round_mode: FLOOR"])
    np.testing.assert_array_equal(results["ceil_mode: true"], results[""])
    assert results[""].shape != results["round_mode: FLOOR"].shape


@pytest.mark.python_layers
@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ("kernel_size: 2 ceil_mode: true round_mode: FLOOR", "expected one of the two"),
        ("kernel_size: 2 strid: 2", "got strid, expected a field of Caffe's"),
        ("kernel_size: 2 pool: MAXIMUM", "got MAXIMUM for pool, expected one of MAX, AVE, STOCHASTIC"),
    ],
)
def test_parameters_that_are_refused_at_load(fields, words):
    with pytest.raises(Exception, match=words):
        load(inputs({"x": (1, 1, 6, 6)}) + layer("Pooling", f"pooling_param {{ {fields} }}", ours=True))


def test_shapes_may_change():
    net = load(inputs({"x": (2, 3, 8, 8)}) + layer("Pooling", "pooling_param { kernel_size: 2 stride: 2 }", ours=True))
    for shape in ((1, 3, 9, 5), (4, 2, 6, 6)):
        net.blobs["x"].reshape(*shape)
        net.reshape()
        x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        net.blobs["x"].data[...] = x
        net.forward()
        assert net.blobs["y"].data[-1, -1, 0, 0] == x[-1, -1, :2, :2].max()


@pytest.mark.python_layers
@pytest.mark.parametrize(
    ("fields", "shape", "words"),
    [
        ("pool: STOCHASTIC kernel_size: 2", (1, 1, 4, 4), "got pool STOCHASTIC"),
        ("", (1, 1, 4, 4), "got no kernel_size"),
        ("kernel_h: 2", (1, 1, 4, 4), "kernel_h or kernel_w alone"),
        ("kernel_size: 2 kernel_h: 2 kernel_w: 2", (1, 1, 4, 4), "kernel_size together with kernel_h"),
        ("kernel_size: 0", (1, 1, 4, 4), "numbers of at least 1"),
        ("kernel_size: 2 stride: 0", (1, 1, 4, 4), "stride"),
        ("kernel_size: 2 pad: 2", (1, 1, 4, 4), "less than the kernel"),
        ("kernel_size: 9", (1, 1, 4, 4), "at most the padded input"),
        ("kernel_size: 2 global_pooling: true", (1, 1, 4, 4), "kernel_size together with global_pooling"),
        ("stride: 2 global_pooling: true", (1, 1, 4, 4), "stride or pad together with global_pooling"),
        ("kernel_size: 2", (1, 4, 4), "expected 4 axes"),
    ],
)
def test_what_is_refused(fields, shape, words):
    with pytest.raises(Exception, match=words):
        load(inputs({"x": shape}) + layer("Pooling", f"pooling_param {{ {fields} }}", ours=True))


@pytest.mark.python_layers
def test_a_mask_of_averages_is_refused():
    with pytest.raises(Exception, match="got 2 top blobs with AVE"):
        parameters = "pooling_param { pool: AVE kernel_size: 2 }"
        load(inputs({"x": (1, 1, 4, 4)}) + layer("Pooling", parameters, ours=True, tops="ym"))


def test_swap():
    text = inputs({"x": (2, 3, 9, 9)}) + layer("Pooling", "pooling_param { pool: AVE kernel_size: 3 }", ours=False)
    swapped, report = swap_net(text)
    assert [(row.name, row.became) for row in report.swapped] == [("op", "OclPooling")]
    nets = [load(source, TEST) for source in (text, swapped)]
    for net in nets:
        net.blobs["x"].data[...] = np.random.default_rng(0).standard_normal((2, 3, 9, 9))
        net.forward()
    np.testing.assert_allclose(nets[1].blobs["y"].data, nets[0].blobs["y"].data, rtol=1e-5, atol=1e-6)


def test_swap_leaves_what_has_no_counterpart():
    for fields, tops, reason in (
        ("pool: STOCHASTIC kernel_size: 2", "y", "STOCHASTIC draws random elements"),
        ("pool: AVE kernel_size: 2", "ym", "no mask"),
    ):
        text = layer("Pooling", f"pooling_param {{ {fields} }}", ours=False, tops=tops)
        swapped, report = swap_net(text)
        assert swapped == text and reason in report.left[0].reason
    assert schema.parse_layer("pooling_param { pool: STOCHASTIC }").pooling_param.pool == 2


def adaptive(text: str, tops: str) -> str:
    """Return an OclAdaptiveMaxPooling layer."""
    return (
        f'layer {{ name: "op" type: "Python" bottom: "x" {tops} python_param {{ module: "clgraft.caffe_layers" '
        f"layer: 'OclAdaptiveMaxPooling' param_str: '{text}' }} }}\nforce_backward: true\n"
    )


@pytest.mark.parametrize("tops", ['top: "y"', 'top: "y" top: "mask"'], ids=["alone", "with the mask"])
@pytest.mark.parametrize(("size", "sizes"), [((7,), (3,)), ((9, 7), (4, 5)), ((6, 4), (3, 2)), ((4, 3, 5), (3, 2, 4))])
def test_adaptive_pooling(size, sizes, tops):
    random = np.random.default_rng(1)
    x = random.integers(-3, 4, (2, 3, *size)).astype(np.float32)
    y, index = adapted(x, sizes)
    dy = random.integers(1, 9, y.shape).astype(np.float32)
    expected = np.zeros((6, x[0, 0].size), np.float32)
    for plane, at, value in zip(expected, index.reshape(6, -1), dy.reshape(6, -1)):
        np.add.at(plane, at, value)
    net = load(inputs({"x": x.shape}) + adaptive(f'{{"output_size": {list(sizes)}}}', tops))
    for _ in range(2):
        got = gradients(net, {"x": x}, {"y": dy})
        np.testing.assert_array_equal(got["y data"], y)
        np.testing.assert_array_equal(got["x diff"], expected.reshape(x.shape))
    if "mask" in tops:
        np.testing.assert_array_equal(net.blobs["mask"].data, index)


def test_adaptive_pooling_of_bottoms_that_change_their_size():
    net = load(inputs({"x": (1, 2, 5, 5)}) + adaptive('{"output_size": [3, 2]}', 'top: "y"'))
    for size in ((5, 5), (6, 4), (9, 7), (5, 5)):
        x = np.random.default_rng(1).integers(-3, 4, (1, 2, *size)).astype(np.float32)
        net.blobs["x"].reshape(*x.shape)
        net.blobs["x"].data[...] = x
        np.testing.assert_array_equal(net.forward()["y"], adapted(x, (3, 2))[0])


@pytest.mark.parametrize("text", ["", "{}", "[3, 2]", '{"output_size": 3}'])
def test_adaptive_pooling_says_what_it_expects(text):
    from clgraft.caffe_layers import layer_class

    with pytest.raises(ValueError, match="expected JSON such as"):
        layer_class("OclAdaptiveMaxPooling")().read(text)
