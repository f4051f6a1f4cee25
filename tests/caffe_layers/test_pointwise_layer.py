"""OclPointwise: expressions as layers, against native layers that mean the same, and what it refuses."""

from __future__ import annotations

import json

import numpy as np
import pytest

caffe = pytest.importorskip("caffe")

from tests.caffe_layers.caffe_nets import close, gradients, inputs, layer, load

PRODUCT = {"forward": "y0 = x0 * x1;", "backward": "dx0 = dy0 * x1; dx1 = dy0 * x0;"}


def pointwise(fields: object, bottoms=("x",), tops=("y",), name: str = "op") -> str:
    """Return an OclPointwise layer."""
    text = fields if isinstance(fields, str) else json.dumps(fields)
    return (
        f'layer {{ name: "{name}" type: "Python" '
        + " ".join([*(f'bottom: "{b}"' for b in bottoms), *(f'top: "{t}"' for t in tops)])
        + f" python_param {{ module: 'clgraft.caffe_layers' layer: 'OclPointwise' param_str: '{text}' }} }}\n"
    )


def test_product_equals_native_eltwise():
    shapes = {"x": (2, 3, 5), "z": (2, 3, 5)}
    random = np.random.default_rng(1)
    data = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    dy = {"y": random.standard_normal((2, 3, 5)).astype(np.float32)}
    native = layer("Eltwise", "eltwise_param { operation: PROD }", ours=False, bottoms=["x", "z"])
    expected, got = (
        gradients(load(inputs(shapes) + text + "force_backward: true"), data, dy)
        for text in (native, pointwise(PRODUCT, ["x", "z"]))
    )
    for name, values in expected.items():
        close(got[name], values, name)


def test_gradients_of_broadcast_bottoms_are_summed():
    shapes = {"x": (4, 3, 5), "z": (3, 1)}
    random = np.random.default_rng(1)
    data = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    dy = random.standard_normal((4, 3, 5)).astype(np.float32)
    net = load(inputs(shapes) + pointwise(PRODUCT, ["x", "z"]) + "force_backward: true")
    got = gradients(net, data, {"y": dy})
    close(got["y data"], data["x"] * data["z"], "y")
    close(got["x diff"], dy * data["z"], "dx")
    close(got["z diff"], (dy * data["x"]).sum((0, 2))[:, None], "dz")


def test_several_tops_scalars_and_locals():
    fields = {
        "name": "polar",
        "forward": "real r = sqrt(x0 * x0 + x1 * x1); y0 = a * r; y1 = atan2(x1, x0) + b;",
        "backward": "real q = x0*x0 + x1*x1; real r = sqrt(q);"
        "dx0 = a * dy0 * x0 / r - dy1 * x1 / q; dx1 = a * dy0 * x1 / r + dy1 * x0 / q;",
        "scalars": {"a": 2, "b": 0.5},
    }
    random = np.random.default_rng(1)
    data = {name: random.uniform(0.5, 2, (3, 7)).astype(np.float32) for name in ("x", "z")}
    dy = {name: random.standard_normal((3, 7)).astype(np.float32) for name in ("y", "v")}
    net = load(inputs({"x": (3, 7), "z": (3, 7)}) + pointwise(fields, ["x", "z"], ["y", "v"]) + "force_backward: true")
    got = gradients(net, data, dy)
    x, z = (data[name].astype(np.float64) for name in ("x", "z"))
    r = np.hypot(x, z)
    close(got["y data"], 2 * r, "r")
    close(got["v data"], np.arctan2(z, x) + 0.5, "angle")
    close(got["x diff"], 2 * dy["y"] * x / r - dy["v"] * z / r**2, "dx")
    close(got["z diff"], 2 * dy["y"] * z / r + dy["v"] * x / r**2, "dz")


def test_in_place_with_a_gradient_of_y():
    fields = {"forward": "y0 = 1 / (1 + exp(-x0));", "backward": "dx0 = dy0 * y0 * (1 - y0);"}
    random = np.random.default_rng(1)
    x, dy = random.standard_normal((2, 3, 7)).astype(np.float32)
    native = layer("Sigmoid", ours=False, tops=["x"])
    expected, got = (
        gradients(load(inputs({"x": (3, 7)}) + text + "force_backward: true"), {"x": x}, {"x": dy})
        for text in (native, pointwise(fields, tops=["x"]))
    )
    for name, values in expected.items():
        close(got[name], values, name)


def test_an_expression_need_not_read_every_bottom():
    fields = {"forward": "y0 = x1;", "backward": "dx0 = 0; dx1 = dy0;"}
    x, z = np.zeros((4, 3), np.float32), np.arange(3, dtype=np.float32)
    net = load(inputs({"x": x.shape, "z": z.shape}) + pointwise(fields, ["x", "z"]) + "force_backward: true")
    got = gradients(net, {"x": x, "z": z}, {"y": np.ones_like(x)})
    assert np.array_equal(got["y data"], np.broadcast_to(z, x.shape))
    assert not got["x diff"].any()
    assert (got["z diff"] == 4).all()


def test_without_a_backward_expression_it_predicts():
    net = load(inputs({"x": (3, 7)}) + pointwise({"forward": "y0 = 2 * x0"}))
    net.blobs["x"].data[...] = 3
    assert (net.forward()["y"] == 6).all()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ("y0 = x0", "got param_str"),
        ("[1]", "expected a JSON object"),
        ({"backward": ""}, "expected a field forward"),
        ({"forward": "y0 = x0", "backwards": ""}, r"got fields \['backwards'\]"),
        ({"forward": "y0 = x0; y1 = x0"}, r"assignments to y of \[0, 1\], expected \[0\]"),
        ({"forward": "y0 = x0 + x1"}, "the name 'x1'"),
        ({"forward": "y0 = x0 +"}, "expected"),
    ],
)
def test_wrong_expressions_are_told(fields, message, caplog):
    with pytest.raises(Exception, match=rf"\[pointwise\] .*{message}"):
        load(inputs({"x": (3, 7)}) + pointwise(fields))
    assert "clgraft: OclPointwise" in caplog.text


@pytest.mark.parametrize(
    ("fields", "top", "message"),
    [
        ({"forward": "y0 = x0"}, "y", "an assignment to dx0"),
        ({"forward": "y0 = x0 * x0", "backward": "dx0 = 2 * dy0 * x0"}, "x", "x is overwritten"),
    ],
)
def test_gradients_that_cannot_be_are_refused(fields, top, message):
    net = load(inputs({"x": (3, 7)}) + pointwise(fields, tops=[top]) + "force_backward: true")
    net.forward()
    with pytest.raises(Exception, match=message):
        net.backward()
