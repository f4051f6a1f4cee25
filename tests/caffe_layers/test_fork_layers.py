"""Permute and Normalize, layers of forks: against float64 formulas, and the native layer where a Caffe has it."""

from __future__ import annotations

import numpy as np
import pytest

from clgraft.caffe_layers.swap import swap_back, swap_net

caffe = pytest.importorskip("caffe")

from tests.caffe_layers.caffe_nets import close, compare, gradients, inputs, layer, load

ORDERS = {
    "pixels first": ((2, 6, 5, 7), (0, 2, 3, 1)),
    "channels and images": ((3, 4, 5), (1, 0, 2)),
    "all turned": ((2, 3, 4, 5), (3, 2, 1, 0)),
    "the rest follows": ((2, 3, 4, 5), (2,)),
    "as it is": ((2, 3, 4), (0, 1, 2)),
    "none given": ((2, 3, 4), ()),
    "five axes": ((2, 3, 1, 4, 5), (0, 4, 1, 3, 2)),
    "shuffled groups": ((2, 4, 3, 6), (0, 2, 1, 3)),
}


@pytest.mark.parametrize("name", ORDERS)
def test_permute(name):
    shape, order = ORDERS[name]
    parameters = "permute_param { " + " ".join(f"order: {axis}" for axis in order) + " }"
    whole = (*order, *(axis for axis in range(len(shape)) if axis not in order))
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    y = x.transpose(whole)
    dy = np.random.default_rng(1).standard_normal(y.shape).astype(np.float32)
    net = load(inputs({"x": shape}) + layer("Permute", parameters, ours=True) + "force_backward: true")
    got = gradients(net, {"x": x}, {"y": dy})
    np.testing.assert_array_equal(got["y data"], y)
    np.testing.assert_array_equal(got["x diff"], dy.transpose(np.argsort(whole)))
    if "Permute" in caffe.layer_type_list():
        compare("Permute", parameters, {"x": shape}, tolerance=0)


@pytest.mark.parametrize("shape", [(3, 6, 4, 5), (2, 13), (1, 3, 2, 3, 4)], ids=str)
@pytest.mark.parametrize("shared", ["true", "false"])
@pytest.mark.parametrize("across", ["true", "false"])
def test_normalize(across, shared, shape):
    eps, fields = 0.01, f"across_spatial: {across} channel_shared: {shared} eps: 0.01"
    net = load(
        inputs({"x": shape}) + layer("Normalize", f"norm_param {{ {fields} }}", ours=True) + "force_backward: true"
    )
    (blob,) = net.params["op"]
    assert blob.data.shape == (() if shared == "true" else shape[1:2]) and (blob.data == 1).all()
    random = np.random.default_rng(2)
    blob.data[...] = random.uniform(0.5, 2, blob.data.shape)
    scale = np.broadcast_to(blob.data.astype(np.float64).reshape(-1, 1), (shape[1], 1))
    axes = (1, 2) if across == "true" else (1,)
    for _ in range(2):
        x, dy, start = (random.standard_normal(size).astype(np.float32) for size in (shape, shape, blob.data.shape))
        start = np.asarray(start, np.float32)
        got = gradients(net, {"x": x}, {"y": dy}, [start])
        values, slope = (np.asarray(a, np.float64).reshape(*shape[:2], -1) for a in (x, dy))
        length = np.sqrt((values**2).sum(axes, keepdims=True) + eps)
        inner = (scale * slope * values).sum(axes, keepdims=True)
        dscale = (slope * values / length).sum((0, 2))
        close(got["y data"], (scale * values / length).reshape(shape), "y", 2e-6)
        close(got["x diff"], ((scale * slope - values * inner / length**2) / length).reshape(shape), "dx", 5e-6)
        expected = start + (dscale.sum() if shared == "true" else dscale)
        close(got["blob 0 diff"], np.asarray(expected), "dscale", 5e-6)


def test_normalize_takes_new_shapes():
    parameters = "norm_param { across_spatial: false }"
    net = load(inputs({"x": (2, 3, 4, 4)}) + layer("Normalize", parameters, ours=True) + "force_backward: true")
    for shape in ((1, 3, 5, 2), (0, 3, 2, 2), (4, 3, 1, 7)):
        net.blobs["x"].reshape(*shape)
        net.reshape()
        net.blobs["x"].data[...] = 2
        net.forward()
        assert np.allclose(net.blobs["y"].data, 3**-0.5) and net.blobs["y"].data.shape == shape


@pytest.mark.python_layers
@pytest.mark.parametrize(
    ("kind", "parameters", "shape", "words"),
    [
        (
            "Permute",
            "permute_param { order: 0 order: 0 }",
            (2, 3),
            r"\[permute\] got order \[0, 0\], expected different",
        ),
        ("Permute", "permute_param { order: 2 }", (2, 3), r"got order \[2\], expected different axes of 2"),
        ("Normalize", "", (3,), r"\[normalize\] got shape \(3,\), expected at least 2 axes"),
    ],
)
def test_what_is_refused(kind, parameters, shape, words):
    with pytest.raises(Exception, match=words):
        load(inputs({"x": shape}) + layer(kind, parameters, ours=True))


def test_a_head_of_ssd_runs_in_a_caffe_without_these_layers():
    """Normalize with its filler, convolution, Permute, Flatten: what SSD does at each scale."""
    text = inputs({"x": (2, 8, 5, 5)}) + (
        layer(
            "Normalize",
            'norm_param { across_spatial: false scale_filler { type: "constant" value: 20 } channel_shared: false }',
            ours=False,
            name="norm",
            tops=["n"],
        )
        + layer(
            "Convolution",
            "convolution_param { num_output: 6 kernel_size: 3 pad: 1 }",
            ours=False,
            bottoms=["n"],
            tops=["c"],
        )
        + layer(
            "Permute",
            "permute_param { order: 0 order: 2 order: 3 order: 1 }",
            ours=False,
            name="perm",
            bottoms=["c"],
            tops=["p"],
        )
        + layer("Flatten", "flatten_param { axis: 1 }", ours=False, name="flat", bottoms=["p"])
    )
    swapped, report = swap_net(text)
    assert [row.became for row in report.swapped] == ["OclNormalize", "OclConvolution", "OclPermute"]
    assert swap_back(swapped)[0] == text
    net = load(swapped)
    assert (net.params["norm"][0].data == 20).all()
    net.params["op"][0].data[...] = np.random.default_rng(0).standard_normal((6, 8, 3, 3))
    net.blobs["x"].data[...] = np.random.default_rng(1).standard_normal((2, 8, 5, 5))
    net.forward()
    assert net.blobs["y"].data.shape == (2, 150)
    np.testing.assert_array_equal(net.blobs["y"].data.reshape(2, 5, 5, 6), net.blobs["c"].data.transpose(0, 2, 3, 1))
