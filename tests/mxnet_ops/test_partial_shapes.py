"""What is known of shapes where not all are given, as MXNet's own operators answer."""

from __future__ import annotations

import warnings

import mxnet as mx
import pytest

from clgraft.mxnet_ops import swap_block, swap_symbol


def net() -> mx.sym.Symbol:
    x = mx.sym.Convolution(mx.sym.var("data"), kernel=(3, 3), num_filter=8, name="c")
    x = mx.sym.Activation(mx.sym.BatchNorm(x, name="b"), act_type="relu", name="a")
    x = mx.sym.Pooling(x, kernel=(2, 2), stride=(2, 2), pool_type="max", name="p")
    x = mx.sym.elemwise_add(x, mx.sym.sigmoid(x))
    return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.Flatten(x), num_hidden=5, name="f"), name="softmax")


def layers() -> mx.sym.Symbol:
    """Without what MXNet refuses for unknown sizes."""
    x = mx.sym.Convolution(mx.sym.var("data"), kernel=(3, 3), num_filter=8, name="c")
    return mx.sym.FullyConnected(mx.sym.BatchNorm(x, name="b"), num_hidden=5, flatten=False, name="f")


def recurrent() -> mx.sym.Symbol:
    return mx.rnn.LSTMCell(4, prefix="l_").unroll(3, inputs=mx.sym.var("data"), layout="NTC", merge_outputs=True)[0]


GIVEN = [
    (net, {"data": (2, 3, 12, 12)}),
    (net, {"data": (0, 3, 12, 12)}),
    (layers, {"data": (0, 3, 12, 12)}),
    (layers, {"data": (2, 3, 0, 0)}),
    (layers, {"data": (0, 0, 0, 0)}),
    (net, {"c_weight": (8, 3, 3, 3)}),
    (net, {}),
    (recurrent, {"data": (2, 3, 5)}),
    (recurrent, {"data": (0, 3, 5)}),
    (recurrent, {}),
]


@pytest.mark.parametrize(("make", "given"), GIVEN, ids=lambda value: str(value) if isinstance(value, dict) else "")
def test_what_is_known_is_returned(make, given):
    native = make()
    swapped, report = swap_symbol(native)
    assert report.replaced
    expected = native.infer_shape_partial(**given)
    got = swapped.infer_shape_partial(**given)
    if make is net and given.get("data"):
        assert got[0][1] == expected[0][1] == (8, 3, 3, 3)
    for kind, names in enumerate((native.list_arguments(), native.list_outputs(), native.list_auxiliary_states())):
        for name, one, other in zip(names, got[kind], expected[kind]):
            # a Custom operator is not told its output's shape, so nothing follows backwards from it
            if given.get("data") and all(given["data"]):
                assert one == other, name
            for a, b in zip(one, other):
                assert a in (b, 0) or b == 0, f"{name}: got {one}, expected {other}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert [x is None for x in swapped.infer_shape(**given)] == [x is None for x in native.infer_shape(**given)]


def test_the_query_of_a_layer():
    """Gluon asks for the shapes of weights when only the channels are known."""
    for op, keys in ((mx.sym.Convolution, {}), (mx.sym.Custom, {"op_type": "ocl_conv"})):
        symbol = op(mx.sym.var("data", shape=(0, 3, 0, 0)), kernel=(5, 3), num_filter=8, name="c", **keys)
        arguments, outputs, _ = symbol.infer_shape_partial()
        assert arguments[1:] == [(8, 3, 5, 3), (8,)] and outputs == [(0, 8, 0, 0)]


def test_a_parameter_of_which_a_part_is_known_follows_from_data():
    """Gluon's layers declare weights before their inputs are known."""
    weight = mx.sym.var("w", shape=(8, 0, 3, 3))
    for op, keys in ((mx.sym.Convolution, {}), (mx.sym.Custom, {"op_type": "ocl_conv"})):
        symbol = op(mx.sym.var("data"), weight, kernel=(3, 3), num_filter=8, no_bias=True, name="c", **keys)
        assert symbol.infer_shape(data=(2, 5, 9, 8)) == ([(2, 5, 9, 8), (8, 5, 3, 3)], [(2, 8, 7, 6)], [])


@pytest.mark.parametrize("regions", [False, True])
def test_a_swapped_block_is_initialized_by_its_first_batch(regions):
    net, nn = mx.gluon.nn.HybridSequential(), mx.gluon.nn
    net.add(nn.Conv2D(4, 3), nn.BatchNorm(), nn.Activation("tanh"), nn.Dense(3))
    net.initialize()
    swap_block(net, regions=regions)
    net.hybridize()
    assert net(mx.nd.zeros((2, 3, 6, 6))).shape == (2, 3)
    assert net[0].weight.shape == (4, 3, 3, 3)
