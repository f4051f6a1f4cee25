"""Errors name the attribute, what came and what was expected, and reach the user when an operator is made."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys

import mxnet as mx
import pytest
from mxnet.base import MXNetError

import clgraft.mxnet_ops
from clgraft.core import ClgraftError

X = (1, 4, 6, 6)
CONV = {"op_type": "ocl_conv", "kernel": (3, 3), "num_filter": 4}
CASES = [
    ({**CONV, "kernel": "three"}, "kernel 'three', expected a tuple"),
    ({**CONV, "kernel": (3, 0)}, "kernel (3, 0), expected a tuple of whole numbers from 1"),
    ({**CONV, "kernel": (1, 1, 1, 1)}, "expected 1 to 3 numbers"),
    ({**CONV, "stride": (1, 1, 1)}, "stride (1, 1, 1), expected 2 numbers"),
    ({**CONV, "pad": -1}, "pad -1, expected"),
    ({**CONV, "num_filter": 0}, "num_filter 0, expected"),
    ({**CONV, "num_filter": 2.5}, "num_filter 2.5, expected"),
    ({**CONV, "num_filter": True}, "num_filter True, expected"),
    ({**CONV, "num_filter": None}, "num_filter nothing, expected"),
    ({**CONV, "num_group": 3}, "num_filter 4, expected a multiple of num_group 3"),
    ({**CONV, "no_bias": "perhaps"}, "no_bias 'perhaps', expected True or False"),
    ({**CONV, "layout": "NWC"}, "layout 'NWC', expected"),
    ({**CONV, "kernal": (3, 3)}, "attribute 'kernal', expected one of"),
    ({**CONV, "kernal": (3, 3)}, "'workspace']; nearest: kernel"),
    (
        {"op_type": "ocl_conv", "kernle": (3, 3), "num_filter": 4},
        "attribute 'kernle' and no kernel, expected kernel: a",
    ),
    ({"op_type": "ocl_conv", "kernel": (3, 3), "num_fliter": 4}, "attribute 'num_fliter' and no num_filter, expected"),
    ({**CONV, "kernel": (7, 7)}, "does not fit"),
    ({**CONV, "kernel": (3,)}, "of shape (1, 4, 6, 6), expected 3 axes"),
    ({"op_type": "ocl_batchnorm", "eps": -1}, "eps -1.0, expected"),
    ({"op_type": "ocl_batchnorm", "axis": 4}, "axis 4, expected an axis of data"),
    ({"op_type": "ocl_activation"}, "act_type nothing, expected"),
    ({"op_type": "ocl_activation", "act_type": "rule"}, "act_type 'rule', expected one of"),
    ({"op_type": "ocl_activation", "act_type": "leaky", "slope": "steep"}, "slope steep, expected a number"),
    ({"op_type": "ocl_eltwise", "operation": "divide", "num_args": 3}, "num_args 3, expected 2"),
    ({"op_type": "ocl_eltwise", "num_args": 1, "coefficients": (1, 2)}, "expected 1 numbers"),
    ({"op_type": "ocl_pointwise", "expression": "y0 = x0;"}, "gradient nothing, expected"),
    ({"op_type": "ocl_pointwise", "expression": "y0 = x1;", "gradient": "none"}, "x1"),
    ({"op_type": "ocl_pointwise", "expression": "y0 = x0;", "gradient": "dx1 = dy0;"}, "expected dx0 to dx0"),
    ({"op_type": "ocl_pointwise", "expression": "y0 = x0;", "gradient": "none", "scalars": "a"}, "scalars a, expected"),
    (
        {"op_type": "ocl_pointwise", "expression": "y0 = x0;", "gradient": "none", "reduction": "sum", "axis": 5},
        "axis (5,), expected",
    ),
]


@pytest.mark.parametrize("keys, text", CASES, ids=[text for _, text in CASES])
def test_imperative(keys, text):
    inputs = [mx.nd.ones(X)]
    if keys["op_type"] == "ocl_batchnorm":
        inputs += [mx.nd.ones(4) for _ in range(4)]
    elif keys["op_type"] == "ocl_conv":
        inputs += [mx.nd.ones((4, 4, 3, 3)), mx.nd.ones(4)]
        inputs = inputs if str(keys.get("no_bias")) != "perhaps" else inputs[:2]
    with pytest.raises(ClgraftError) as error:
        mx.nd.Custom(*inputs, **keys)
    assert text in str(error.value) and str(error.value).startswith("["), error.value


OF_SHAPES = ("does not fit", "expected 3 axes", "an axis of data", "axis (5,), expected")  # are not known to a symbol
SYMBOLIC = [case for case in CASES if not case[1].endswith(OF_SHAPES)]


@pytest.mark.parametrize("keys, text", SYMBOLIC, ids=[text for _, text in SYMBOLIC])
def test_symbolic_attributes(keys, text):
    with pytest.raises(ClgraftError) as error:
        mx.sym.Custom(mx.sym.var("data"), **keys)
    assert text in str(error.value)


def test_symbolic_shapes_fail_when_they_are_inferred_and_not_later(caplog):
    symbol = mx.sym.Custom(mx.sym.var("data"), **{**CONV, "kernel": (7, 7)})
    with pytest.raises(MXNetError):
        symbol.infer_shape(data=X)
    assert "does not fit" in caplog.text


def test_sizes_of_0_are_unknown_to_mxnet_without_np_shape():
    symbol = mx.sym.Custom(mx.sym.var("data"), **CONV, name="c")
    native = mx.sym.Convolution(mx.sym.var("data"), kernel=(3, 3), num_filter=4)
    for asked in (native, symbol):
        with pytest.warns(UserWarning, match="unknown dimensions"):
            assert asked.infer_shape(data=(0, 4, 6, 6)) == (None, None, None)
    with mx.util.np_shape(True):
        assert symbol.infer_shape(data=(0, 4, 6, 6)) == ([(0, 4, 6, 6), (4, 4, 3, 3), (4,)], [(0, 4, 4, 4)], [])
        empty = mx.nd.zeros((0, 4, 6, 6))
    for keys, more in ((CONV, [mx.nd.ones((4, 4, 3, 3)), mx.nd.ones(4)]), ({"op_type": "ocl_dropout"}, [])):
        with pytest.raises(ClgraftError) as error:
            mx.nd.Custom(empty, *more, **keys)
        assert "got data of shape (0, 4, 6, 6), expected no size of 0, or mx.util.np_shape" in str(error.value)


def test_an_error_of_a_symbol_is_not_told_again():
    with pytest.raises(MXNetError):
        mx.sym.Custom(mx.sym.var("data"), **{**CONV, "kernel": (7, 7)}).infer_shape(data=X)
    with pytest.raises(MXNetError) as error:
        mx.nd.Custom(
            mx.nd.ones(X).as_in_context(mx.cpu()), op_type="ocl_slice", axis=1, begin=0, end=2, out=mx.nd.ones(3)
        )
    assert "(7, 7)" not in str(error.value)


def test_wrong_shapes_types_counts_and_names():
    x, w = mx.nd.ones(X), mx.nd.ones((4, 4, 3, 3))
    keys = {**CONV, "no_bias": True}
    for inputs, named, text in (
        ([x, mx.nd.ones((4, 3, 3, 3))], {}, "weight of shape (4, 3, 3, 3), expected shape (4, 4, 3, 3)"),
        ([x], {}, "weight nothing, expected inputs"),
        ([x, w, w], {}, "3 of them, expected at most 2"),
        ([x, w], {"weight": w}, "weight twice"),
        ([x], {"wait": w}, "input 'wait', expected one of"),
        ([x.astype("int32"), w.astype("int32")], {}, "data of dtype int32, expected one of"),
        ([x, w.astype("float64")], {}, "expected one dtype"),
    ):
        with pytest.raises(ClgraftError) as error:
            mx.nd.Custom(*inputs, **named, **keys)
        assert text in str(error.value), error.value


def test_the_process_goes_on_after_errors():
    for keys, _ in CASES:
        with pytest.raises(ClgraftError):
            mx.nd.Custom(mx.nd.ones(X), **keys)
    assert mx.nd.Custom(mx.nd.ones(X), op_type="ocl_activation", act_type="relu").asnumpy().sum() == 144


def test_attributes_of_scopes_and_other_backends_are_accepted():
    with mx.AttrScope(ctx_group="one", __lr_mult__="2"):
        symbol = mx.sym.Custom(mx.sym.var("data"), workspace=512, cudnn_tune="off", cudnn_off=True, **CONV)
    assert symbol.infer_shape(data=X)[1] == [(1, 4, 4, 4)]


def shape_error(kind: str) -> None:
    """Meet a weight of the wrong shape."""
    data, weight = mx.nd.ones((2, 6)), mx.nd.ones((4, 5))
    keys = {"op_type": "ocl_fully_connected", "num_hidden": 4, "no_bias": True, "name": "dense"}
    symbol = mx.sym.Custom(mx.sym.var("x"), mx.sym.var("w"), **keys)
    if kind == "imperative":
        mx.nd.Custom(data, weight, **keys)
    elif kind == "bind":
        symbol.bind(mx.cpu(), {"x": data, "w": weight})
    elif kind == "simple_bind":
        symbol.simple_bind(mx.cpu(), x=data.shape, w=weight.shape)
    elif kind == "infer_shape":
        symbol.infer_shape(x=data.shape, w=weight.shape)
    else:
        net = mx.gluon.nn.Dense(4, in_units=5, use_bias=False, prefix="dense_")
        net.initialize()
        clgraft.mxnet_ops.swap_block(net)
        if kind == "hybrid":
            net.hybridize()
        net(data)


@pytest.mark.parametrize("base", [MXNetError, ClgraftError, ValueError, clgraft.mxnet_ops.OperatorError])
@pytest.mark.parametrize("kind", ["imperative", "bind", "simple_bind", "infer_shape", "plain", "hybrid"])
def test_an_error_is_mxnets_and_clgrafts_and_holds_the_sentence(kind, base):
    with pytest.raises(base) as error:
        shape_error(kind)
    text = "[ocl_fully_connected] got weight of shape (4, 5), expected shape (4, 6)"
    assert str(error.value).startswith(text)
    if kind not in ("imperative", "plain"):
        assert "(operator 'dense" in str(error.value)


def test_an_error_of_an_attribute_is_mxnets_too():
    for custom, data in ((mx.nd.Custom, mx.nd.ones(X)), (mx.sym.Custom, mx.sym.var("x"))):
        with pytest.raises(MXNetError) as error:
            custom(data, strde=(1, 1), **CONV)
        assert "[ocl_conv] got attribute 'strde'" in str(error.value)


@contextlib.contextmanager
def sigint_raises():
    """Have SIGINT raise KeyboardInterrupt, also where the tests run in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_interrupt_while_an_operator_is_made_stays_one(monkeypatch):
    def interrupted(*_):
        signal.raise_signal(signal.SIGINT)

    x = mx.nd.ones(X)
    keys = {"op_type": "ocl_activation", "act_type": "softrelu"}
    with monkeypatch.context() as patch, sigint_raises():
        patch.setattr(clgraft.mxnet_ops.Activation, "infer", interrupted)
        for run in (
            lambda: mx.nd.Custom(x, **keys),
            lambda: mx.sym.Custom(mx.sym.var("data"), **keys).infer_shape(data=X),
            lambda: mx.sym.Custom(mx.sym.var("data"), **keys).simple_bind(mx.cpu(), data=X),
        ):
            with pytest.raises(KeyboardInterrupt):
                run()
    assert mx.nd.Custom(x, **keys).asnumpy().shape == X
    with pytest.raises(MXNetError):  # the interrupt has been raised, once
        mx.nd.dot(mx.nd.ones((2, 3)), mx.nd.ones((2, 3))).wait_to_read()


INTERRUPTED = """
import signal, sys
import clgraft.mxnet_ops
import mxnet as mx
from clgraft.core.session.context import Context

signal.signal(signal.SIGINT, signal.default_int_handler)
swapped = sys.argv[1] == "region"
net = mx.gluon.nn.HybridSequential()
net.add(mx.gluon.nn.Conv2D(3, 3, in_channels=2), mx.gluon.nn.Activation("relu"))
net.initialize()
clgraft.mxnet_ops.swap_block(net, regions=swapped, fuse=False)
net.hybridize()
x = mx.nd.ones((2, 2, 9, 9))
original, left = Context.hand_over, [1]

def hand_over(*arguments):
    if left and left.pop():
        signal.raise_signal(signal.SIGINT)
    return original(*arguments)

Context.hand_over = hand_over
try:
    net(x).wait_to_read()
    print("not interrupted")
except KeyboardInterrupt:
    print("interrupted")
print(net(x).asnumpy().shape)  # the next call makes what is missing
x.attach_grad()
with mx.autograd.record():
    y = net(x)
left.append(1)
try:
    y.backward()
    mx.nd.waitall()
    print("not interrupted")
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.parametrize("kind", ["region", "operators"])
def test_an_interrupt_in_a_compilation_stays_one(kind):
    """With MXNet's engine that runs operators in the caller's thread, where Python's signals arrive."""
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, kind],
        capture_output=True,
        text=True,
        env={**os.environ, "MXNET_ENGINE_TYPE": "NaiveEngine"},
    )
    assert done.stdout.splitlines() == ["interrupted", "(2, 3, 7, 7)", "interrupted"], done.stderr[-3000:]
