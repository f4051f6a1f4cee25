"""What the swap leaves to MXNet because the swapped model would not bind, run or compute the same; each says why."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon

from clgraft.mxnet_ops import swap_block, swap_symbol
from tests.mxnet_ops.operator_checks import assert_close, evaluate, random

X = (2, 3, 4, 4)
ELEMENTWISE = {
    "sum": lambda x, y: mx.sym.elemwise_add(x, y),
    "broadcast": lambda x, y: mx.sym.broadcast_mul(x, y),
    "absolute": lambda x, y: mx.sym.abs(x),
    "scaled": lambda x, y: x * 2,
    "joined": lambda x, y: mx.sym.Concat(x, y, dim=1),
    "stacked": lambda x, y: mx.sym.stack(x, y),
    "many": lambda x, y: mx.sym.add_n(x, y, x),
    "clipped": lambda x, y: mx.sym.clip(mx.sym.elemwise_sub(x, y), a_min=0, a_max=3),
}


def swapped(symbol: mx.sym.Symbol, **options) -> tuple[mx.sym.Symbol, dict[str, str]]:
    """Return the swapped symbol, and the reasons by operator of those that stay."""
    found, report = swap_symbol(symbol, **{"regions": False, **options})
    return found, {row.operator: row.reason for row in report.kept}


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8"])
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_whole_numbers(name, dtype, rng):
    native = ELEMENTWISE[name](mx.sym.var("x"), mx.sym.var("y"))
    found, reasons = swapped(native)
    assert reasons and all("whole numbers: the dtype of 'x' is not known" in text for text in reasons.values())
    arrays = {n: rng.integers(0, 9, X).astype(dtype) for n in native.list_arguments()}
    got, expected = (evaluate(symbol, arrays).outputs[0] for symbol in (found, native))
    np.testing.assert_array_equal(got, expected)
    assert got.dtype == np.dtype(dtype)


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_real_numbers_by_what_is_tied_to_them(name, rng):
    x, y = mx.sym.var("x"), mx.sym.var("y")
    made = ELEMENTWISE[name](x, y)
    declared = ELEMENTWISE[name](mx.sym.var("x", dtype="float32"), y)
    for native in (mx.sym.softmax(made), ELEMENTWISE[name](mx.sym.softmax(x), y), declared):
        found, reasons = swapped(native)
        assert not reasons, reasons
        arrays = {n: random(rng, *X) for n in native.list_arguments()}
        assert_close(*(evaluate(symbol, arrays).outputs[0] for symbol in (found, native)))


def test_what_mxnet_makes_of_real_numbers_is_real():
    x = mx.sym.Activation(mx.sym.var("x"), act_type="tanh")
    anchors = mx.sym.contrib.MultiBoxPrior(x, sizes=(0.2,), name="anchors")
    _, reasons = swapped(mx.sym.Concat(anchors, anchors, dim=1))
    assert set(reasons) == {"_contrib_MultiBoxPrior"}
    _, reasons = swapped(mx.sym.Concat(mx.sym.shape_array(x), mx.sym.var("y"), dim=0))
    assert "int64" in reasons["Concat"]


BACKWARDS = {
    "weight": lambda x, w: mx.sym.Convolution(x, mx.sym.tanh(w), kernel=(3, 3), num_filter=2, no_bias=True),
    "doubled": lambda x, w: mx.sym.FullyConnected(x, w + w, num_hidden=2, no_bias=True),
    "scaled": lambda x, w: mx.sym.FullyConnected(x, 0.5 * mx.sym.exp(w), num_hidden=2, no_bias=True),
    "term": lambda x, w: mx.sym.elemwise_add(mx.sym.softmax(x), mx.sym.Activation(w, act_type="tanh")),
}


@pytest.mark.parametrize("options", [{}, {"regions": True}], ids=str)
@pytest.mark.parametrize("name", BACKWARDS)
def test_shapes_that_pass_backwards(name, options, rng):
    native = BACKWARDS[name](mx.sym.var("x"), mx.sym.var("w", dtype="float32"))
    found, reasons = swapped(native, **options)
    assert any("follow from operators after it" in text for text in reasons.values()), reasons
    shapes = [symbol.infer_shape(x=X)[0] for symbol in (found, native)]
    assert shapes[0] == shapes[1]
    arrays = {n: random(rng, *shape) for n, shape in zip(native.list_arguments(), shapes[0])}
    heads = [random(rng, *native.infer_shape(x=X)[1][0])]
    got, expected = (evaluate(symbol, arrays, heads) for symbol in (found, native))
    assert_close(got.outputs[0], expected.outputs[0])
    for n in arrays:
        assert_close(got.gradients[n], expected.gradients[n], what=n)


def test_a_shape_that_is_declared_or_known_needs_no_way_back():
    declared = mx.sym.var("w", shape=(2, 3, 3, 3), dtype="float32")
    x = mx.sym.var("x")
    _, reasons = swapped(mx.sym.Convolution(x, mx.sym.tanh(declared), kernel=(3, 3), num_filter=2, no_bias=True))
    assert not reasons
    # a residual net: both terms follow from one input
    _, reasons = swapped(mx.sym.elemwise_add(mx.sym.softmax(mx.sym.relu(x)), mx.sym.relu(x)))
    assert not reasons


@pytest.mark.parametrize(
    ("symbol", "operator", "part"),
    [
        (mx.sym.SliceChannel(mx.sym.var("x", dtype="float64"), num_outputs=1), "SliceChannel", "one output"),
        (mx.sym.Pooling(mx.sym.var("x"), kernel=(3, 1), pad=(1, 1), pool_type="avg"), "Pooling", "padding (1, 1)"),
    ],
)
def test_attributes(symbol, operator, part, rng):
    found, reasons = swapped(symbol)
    assert part in reasons[operator] and found.list_outputs() == symbol.list_outputs()
    arrays = {"x": random(rng, *X, dtype="float64")}
    got, expected = (evaluate(s, arrays).outputs[0] for s in (found, symbol))
    np.testing.assert_array_equal(got, expected)


def test_regions_keep_the_layouts_of_outputs():
    x = mx.sym.Activation(mx.sym.var("x"), act_type="tanh")
    with mx.AttrScope(__layout__="TNC"):
        native = mx.sym.Activation(x, act_type="relu", name="o")
    found, report = swap_symbol(mx.sym.Group([x, native]), regions=True)
    assert report.regions
    assert [found[i].attr("__layout__") for i in range(2)] == [None, "TNC"]


def test_parameters_of_a_symbol_block_tell_their_dtype(rng):
    x, w = mx.sym.var("x"), mx.sym.var("w")
    reports = []
    for dtype in ("float32", "int32"):
        net = gluon.SymbolBlock(mx.sym.broadcast_mul(x, w), [x])
        parameter = net.collect_params()["w"]
        parameter.shape, parameter.dtype = (1, 3, 1, 1), dtype
        parameter.initialize(mx.init.One())
        reports.append(swap_block(net))
        got = net(mx.nd.array(rng.integers(0, 9, X), dtype=dtype))
        assert got.dtype == np.dtype(dtype) and (got.asnumpy() >= 0).all()
    assert [len(report.replaced) for report in reports] == [1, 0]
    assert "int32" in reports[1].kept[0].reason
