"""Softmax, its losses and the regression outputs compared with MXNet's own."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon

import clgraft.mxnet_ops as ops
from clgraft import core
from tests.mxnet_ops.operator_checks import MODES, TOLERANCE, assert_close, compare, evaluate, numeric_gradients, random

FUNCTIONS = ("softmax", "log_softmax", "softmin")
HEAD_ONLY = {"data": "write", "label": "null"}


def pair(name: str, **keys):
    """Return a native symbol and its swap."""
    data = mx.sym.var("data")
    native = getattr(mx.sym, name)
    labelled = name.endswith("Output") or name == "softmax_cross_entropy"
    net = native(data, mx.sym.var("label"), name="op", **keys) if labelled else native(data, name="op", **keys)
    swapped, report = ops.swap_symbol(net)
    assert len(report.replaced) == 1 and not report.kept, report
    assert swapped.list_outputs() == net.list_outputs() and swapped.list_arguments() == net.list_arguments()
    return swapped, net


def compare_loss(ours, native, arrays, rng, *, dtype="float32", heads=True) -> None:
    """Compare the output and data's gradient, written and added; label has none in MXNet and a zero here.

    Factors are single precision in MXNet, whatever the data: so is the comparison.
    """
    found = evaluate(native, arrays, requests=HEAD_ONLY)
    given = [random(rng, *found.outputs[0].shape, dtype=dtype)] if heads else []
    expected = evaluate(native, arrays, given, requests=HEAD_ONLY)
    got = evaluate(ours, arrays, given)
    assert_close(got.outputs[0], expected.outputs[0], "float32", "output")
    assert_close(got.gradients["data"], expected.gradients["data"], "float32", "gradient")
    assert not got.gradients["label"].any()
    added = evaluate(ours, arrays, given, requests={"data": "add", "label": "null"}, start=3.0)
    assert_close(added.gradients["data"], expected.gradients["data"] + 3, "float32", "added gradient")
    assert np.isnan(added.gradients["label"]).all()


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize(
    "shape, keys",
    [
        ((7, 10), {}),
        ((3, 5, 11, 13), {"axis": 1}),
        ((3, 5, 11, 13), {"axis": 0, "temperature": 2.5}),
        ((2, 3, 4, 37), {"axis": -2}),
        ((5,), {}),
        ((4, 1, 6), {"axis": 1}),
        ((2, 257), {"temperature": 0.5}),
    ],
    ids=str,
)
def test_softmax_is_mxnets(shape, keys, function, rng):
    for dtype in ("float32", "float64"):
        compare(*pair(function, **keys), {"data": 3 * random(rng, *shape, dtype=dtype)}, rng, dtype=dtype)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_half_precision(function, rng):
    arrays = {"data": random(rng, 5, 33, 3, dtype="float16")}
    ours, native = pair(function, axis=1)
    wide = evaluate(native, {"data": arrays["data"].astype("float64")}, [np.ones((5, 33, 3))])
    got = evaluate(ours, arrays, [np.ones((5, 33, 3), "float16")])
    assert_close(got.outputs[0], wide.outputs[0], "float16")
    assert np.abs(got.gradients["data"] - wide.gradients["data"]).max() < 0.05 if function == "log_softmax" else 2e-3


@pytest.mark.parametrize("mode, shape", [("channel", (3, 4, 5, 2)), ("instance", (6, 9))])
def test_softmax_activation_is_mxnets(mode, shape, rng):
    compare(*pair("SoftmaxActivation", mode=mode), {"data": random(rng, *shape)}, rng)


def test_softmax_activation_of_more_axes(rng):
    """MXNet's own goes along the last axis, but its gradient along axis 1: ours is that of the output."""
    ours, native = pair("SoftmaxActivation")
    arrays = {"data": random(rng, 3, 4, 5, 2, dtype="float32")}
    assert_close(evaluate(ours, arrays).outputs[0], evaluate(native, arrays).outputs[0])
    numeric_gradients(ours, {"data": random(rng, 3, 4, 5, 2, dtype="float64")}, rng)


def test_large_numbers_infinities_and_nan():
    x = np.array([[1e4, -1e4, 0], [-np.inf, 1, 2], [3e38, 3e38, -3e38], [-np.inf] * 3, [np.inf, 1, 2], [np.nan, 1, 2]])
    x = mx.nd.array(x, dtype="float32")
    got = mx.nd.Custom(x, op_type="ocl_softmax").asnumpy()
    np.testing.assert_allclose(got[:3], mx.nd.softmax(x).asnumpy()[:3], rtol=1e-6)
    assert np.isnan(got[3:]).all()


@pytest.mark.parametrize("function", FUNCTIONS)
def test_numeric_gradients(function, rng):
    numeric_gradients(pair(function, axis=1)[0], {"data": rng.standard_normal((3, 5, 4))}, rng)


OUTPUTS = {
    "rows": ((6, 10), (6,), {}),
    "scaled": ((6, 10), (6,), {"grad_scale": 2.5, "normalization": "batch"}),
    "ignoring": ((6, 10), (6,), {"use_ignore": True, "ignore_label": 3}),
    "valid": ((6, 10), (6,), {"use_ignore": True, "ignore_label": 3, "normalization": "valid"}),
    "counted but not ignored": ((6, 10), (6,), {"ignore_label": 3, "normalization": "valid"}),
    "all ignored": ((2, 1), (2,), {"use_ignore": True, "ignore_label": 0, "normalization": "valid"}),
    "smooth": ((6, 10), (6,), {"smooth_alpha": 0.1}),
    "smooth, ignoring": ((6, 10), (6,), {"smooth_alpha": 0.1, "use_ignore": True, "ignore_label": 3}),
    "places": ((2, 5, 3, 7), (2, 3, 7), {"multi_output": True}),
    "places, flat": ((2, 5, 3, 7), (2, 21), {"multi_output": True, "normalization": "batch"}),
    "places, one channel": (
        (2, 5, 6, 9),
        (2, 1, 6, 9),
        {"multi_output": True, "use_ignore": True, "ignore_label": 4, "normalization": "valid"},
    ),
    "places, smooth": ((2, 5, 3), (2, 3), {"multi_output": True, "smooth_alpha": 0.1}),
    "last axis": ((2, 3, 5), (2, 3), {"preserve_shape": True, "normalization": "batch"}),
    "flattened": ((3, 2, 5), (3, 2), {"normalization": "batch"}),
    "probabilities": ((6, 10), (6, 10), {"grad_scale": 3, "normalization": "batch"}),
    "probabilities of places": ((2, 5, 7), (2, 5, 7), {"multi_output": True}),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_softmax_output_is_mxnets(name, rng):
    shape, label, keys = OUTPUTS[name]
    for dtype in ("float32", "float64"):
        y = (
            rng.random(label)
            if label == shape
            else rng.integers(0, shape[1 if keys.get("multi_output") else -1], label)
        )
        arrays = {"data": random(rng, *shape, dtype=dtype), "label": y.astype(dtype)}
        compare_loss(*pair("SoftmaxOutput", **keys), arrays, rng, dtype=dtype)


@pytest.mark.parametrize("name", ["rows", "valid", "smooth", "places"])
def test_softmax_output_in_half_precision(name, rng):
    """Compared with MXNet's own in double precision."""
    shape, label, keys = OUTPUTS[name]
    classes = shape[1 if keys.get("multi_output") else -1]
    arrays = {"data": random(rng, *shape, dtype="float16"), "label": rng.integers(0, classes, label).astype("float16")}
    ours, native = pair("SoftmaxOutput", **keys)
    wide = {key: value.astype("float64") for key, value in arrays.items()}
    expected, got = evaluate(native, wide, [], requests=HEAD_ONLY), evaluate(ours, arrays, [])
    assert_close(got.outputs[0], expected.outputs[0], "float16")
    assert_close(got.gradients["data"], expected.gradients["data"], "float16")


@pytest.mark.parametrize("places", [False, True])
@pytest.mark.parametrize("probabilities", [False, True])
def test_gradients_weighted_by_the_outputs_gradient(probabilities, places, rng):
    """Compared with the definition: MXNet's own multiplies by its output, so that it stays where it is."""
    x, head = random(rng, 4, 5, 3, dtype="float64"), random(rng, 4, 5, 3, dtype="float64")
    y = np.exp(x) / np.exp(x).sum(1 if places else 2, keepdims=True)
    labels = rng.integers(0, 3, (4, 3) if places else (4, 5))
    targets = np.moveaxis(np.eye(5)[labels], 2, 1) if places else np.eye(3)[labels]
    keys = {"multi_output": True} if places else {"preserve_shape": True}
    symbols = [mx.sym.var("data"), mx.sym.var("label")]
    ours = mx.sym.Custom(*symbols, op_type="ocl_softmax_output", out_grad=True, grad_scale=0.5, **keys)
    arrays = {"data": x, "label": targets if probabilities else labels.astype("float64")}
    divisor = 3 if places and not probabilities else 1
    got = evaluate(ours, arrays, [head])
    assert_close(got.gradients["data"], 0.5 * (y - targets) * head / divisor, "float64")
    net = mx.sym.SoftmaxOutput(*symbols, out_grad=True)
    assert "output itself" in ops.swap_symbol(net)[1].kept[0].reason


def test_labels_that_name_no_class(rng):
    arrays = {"data": random(rng, 6, 5), "label": np.array([-1, 5, 2.7, 1e9, np.nan, 0.5], "float32")}
    compare_loss(*pair("SoftmaxOutput"), arrays, rng)
    arrays["label"][4] = 4
    x, label = (mx.nd.array(arrays[name]) for name in ("data", "label"))
    got = mx.nd.Custom(x, label, op_type="ocl_softmax_cross_entropy").asnumpy()
    chosen = mx.nd.log_softmax(x).asnumpy()[[2, 4, 5], [2, 4, 0]]
    np.testing.assert_allclose(got, [-chosen.sum()], rtol=1e-6)


def test_a_loss_needs_no_head_gradient(rng):
    for name, keys in (("SoftmaxOutput", {}), ("MAERegressionOutput", {})):
        shape = (4, 3)
        label = rng.integers(0, 3, 4) if name == "SoftmaxOutput" else rng.random(shape)
        arrays = {"data": random(rng, *shape), "label": label.astype("float32")}
        compare_loss(*pair(name, **keys), arrays, rng, heads=False)


def test_labels_shape_is_inferred():
    for keys, shape in (({}, (4,)), ({"multi_output": True}, (4, 6))):
        net = mx.sym.SoftmaxOutput(mx.sym.var("data"), name="loss", **keys)
        data = (4, 5, 2, 3) if keys else (4, 5)
        for symbol in (net, ops.swap_symbol(net)[0]):
            shapes = dict(zip(symbol.list_arguments(), symbol.infer_shape(data=data)[0]))
            assert shapes["loss_label"] == shape


def test_softmax_cross_entropy_is_mxnets(rng):
    for dtype in ("float32", "float64"):
        arrays = {"data": random(rng, 9, 7, dtype=dtype), "label": rng.integers(0, 7, 9).astype(dtype)}
        arrays["data"][0, int(arrays["label"][0])] = -300  # a probability that counts as the least one
        compare_loss(*pair("softmax_cross_entropy"), arrays, rng, dtype=dtype)


@pytest.mark.parametrize("name", ["LinearRegressionOutput", "LogisticRegressionOutput", "MAERegressionOutput"])
@pytest.mark.parametrize("shape, label", [((4, 5), (4, 5)), ((4, 1), (4,)), ((4, 2, 3), (4, 6)), ((7,), (7,))], ids=str)
def test_regression_outputs_are_mxnets(shape, label, name, rng):
    for dtype in ("float32", "float64"):
        arrays = {"data": random(rng, *shape, dtype=dtype), "label": random(rng, *label, dtype=dtype)}
        arrays["label"].flat[0] = arrays["data"].flat[0]
        compare_loss(*pair(name, grad_scale=3.0), arrays, rng, dtype=dtype)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "make, label",
    [
        (lambda: gluon.loss.SoftmaxCELoss(), "classes"),
        (lambda: gluon.loss.SoftmaxCELoss(sparse_label=False, axis=1), "shares"),
        (lambda: gluon.loss.KLDivLoss(from_logits=False), "shares"),
    ],
    ids=["classes", "shares", "divergence"],
)
def test_gluons_losses_are_swapped(make, label, mode, rng, monkeypatch):
    """They call log_softmax, with its axis by position."""
    called, custom = [], mx.nd.Custom
    monkeypatch.setattr(mx.nd, "Custom", lambda *a, **k: called.append(k["op_type"]) or custom(*a, **k))
    x = mx.nd.array(random(rng, 6, 9))
    y = mx.nd.array(rng.integers(0, 9, 6) if label == "classes" else rng.random((6, 9)))
    found = []
    for swapped in (False, True):
        loss = make()
        if swapped:
            ops.swap_block(loss)
        if mode != "plain":
            loss.hybridize(static_alloc=mode == "static", static_shape=mode == "static")
        x.attach_grad()
        with mx.autograd.record():
            value = loss(x, y)
        value.backward()
        found.append((value.asnumpy(), x.grad.asnumpy()))
    for expected, got in zip(*found):
        assert_close(got, expected)
    assert "ocl_softmax" in (called if mode == "plain" else loss._cached_graph[1].tojson())


def test_a_module_trains_to_the_same_weights(rng):
    """From a fit without any head gradients."""
    data, label = random(rng, 32, 6), rng.integers(0, 3, 32).astype("float32")
    net = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3, name="fc")
    net = mx.sym.SoftmaxOutput(net, mx.sym.var("softmax_label"), name="softmax")
    weights = {"fc_weight": mx.nd.array(random(rng, 3, 6)), "fc_bias": mx.nd.zeros(3)}
    found = []
    for symbol in (net, ops.swap_symbol(net, select="SoftmaxOutput")[0]):
        module = mx.mod.Module(symbol, label_names=["softmax_label"])
        module.fit(mx.io.NDArrayIter(data, label, 8), num_epoch=3, arg_params={k: v.copy() for k, v in weights.items()})
        found.append(module.get_params()[0]["fc_weight"].asnumpy())
    assert_close(found[1], found[0])
    assert np.abs(found[0] - weights["fc_weight"].asnumpy()).max() > 100 * TOLERANCE["float32"]


@pytest.mark.parametrize(
    "op_type, keys, part",
    [
        ("ocl_softmax", {"function": "hardmax"}, "'hardmax'"),
        ("ocl_softmax", {"axis": 1.5}, "axis 1.5"),
        ("ocl_softmax", {"temperature": 0}, "temperature 0"),
        ("ocl_softmax", {"dtype": "float64"}, "dtype float64"),
        ("ocl_softmax", {"use_length": True}, "use_length True"),
        ("ocl_softmax_output", {"normalization": "sum"}, "'sum'"),
        ("ocl_softmax_output", {"smooth_alpha": 2}, "smooth_alpha 2"),
        ("ocl_regression_output", {}, "loss nothing"),
    ],
)
def test_wrong_attributes_are_named(op_type, keys, part):
    arrays = [mx.sym.var("data")] + [mx.sym.var("label")] * ("output" in op_type)
    with pytest.raises(core.ProblemError) as caught:
        mx.sym.Custom(*arrays, op_type=op_type, **keys)
    assert str(caught.value).startswith(f"[{op_type}] got ") and part in str(caught.value)


@pytest.mark.parametrize(
    "op_type, keys, shapes, part",
    [
        ("ocl_softmax", {"axis": 2}, [(2, 3)], "axis 2"),
        ("ocl_softmax_output", {}, [(2, 3), (3,)], "label of shape (3,)"),
        ("ocl_softmax_output", {"multi_output": True}, [(2,), (2,)], "at least 2 axes"),
        ("ocl_softmax_cross_entropy", {}, [(2, 3, 4), (2,)], "data of shape"),
        ("ocl_regression_output", {"loss": "mae"}, [(2, 3), (3, 2)], "label of shape"),
    ],
)
def test_wrong_shapes_are_named(op_type, keys, shapes, part):
    with pytest.raises(core.ProblemError) as caught:
        mx.nd.Custom(*(mx.nd.zeros(shape) for shape in shapes), op_type=op_type, **keys)
    assert f"[{op_type}]" in str(caught.value) and part in str(caught.value)


def test_swap_leaves_what_it_cannot_say():
    data = mx.sym.var("data")
    for net, part in (
        (mx.sym.softmax(data, dtype="float64", name="op"), "dtype"),
        (mx.sym.softmax(data, mx.sym.var("length"), use_length=True, name="op"), "use_length"),
    ):
        swapped, report = ops.swap_symbol(net)
        assert part in report.kept[0].reason and "ocl_" not in swapped.tojson()


def test_no_rows():
    with mx.util.np_shape(True):
        x = mx.nd.zeros((0, 5))
        x.attach_grad()
        with mx.autograd.record():
            y = mx.nd.Custom(x, mx.nd.zeros((0,)), op_type="ocl_softmax_output", normalization="valid")
        y.backward()
        assert y.shape == (0, 5) and x.grad.shape == (0, 5)
