"""Chains of elementwise operators, and norms with the activation after them, in regions; the argument `fuse`."""

from __future__ import annotations

import json

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon

from clgraft.core import ProblemError
from clgraft.mxnet_ops import swap_block, swap_symbol
from tests.mxnet_ops.operator_checks import compare, evaluate, random

SHAPE = (3, 5, 6, 7)


def conv(x, name="conv"):
    return mx.sym.Convolution(x, kernel=(1, 1), num_filter=5, no_bias=True, name=name)


def hard_swish(x):
    return x * (mx.sym.clip(x + 3, 0, 6) / 6)


CHAINS = {
    "sum-relu": lambda x: mx.sym.Activation(conv(x, "a") + conv(x, "b"), act_type="relu", name="last"),
    "swish": lambda x: (lambda y: mx.sym.elemwise_mul(y, mx.sym.sigmoid(y), name="last"))(conv(x)),
    "hard-swish": lambda x: mx.sym.identity(hard_swish(conv(x)), name="end"),
    "three": lambda x: mx.sym.add_n(mx.sym.tanh(conv(x, "a")), conv(x, "b"), mx.sym.square(conv(x, "c")), name="last"),
    "both-sides": lambda x: mx.sym.exp(mx.sym.maximum(conv(x, "a") * 0.5, 1 - conv(x, "b")), name="last"),
    "outputs": lambda x: mx.sym.sqrt(mx.sym.exp(mx.sym.LeakyReLU(conv(x), act_type="elu")), name="last"),
    "divided": lambda x: conv(x, "a") / (mx.sym.square(conv(x, "b")) + 1),
}


def types(symbol) -> list[str]:
    nodes = json.loads(symbol.tojson())["nodes"]
    return [node["attrs"]["op_type"] for node in nodes if node["op"] == "Custom"]


def arrays_of(symbol, rng, dtype):
    shapes = symbol.infer_shape(x=SHAPE)[0]
    return {name: random(rng, *shape, dtype=dtype) for name, shape in zip(symbol.list_arguments(), shapes)}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_computes_the_same(name, dtype, rng):
    native = CHAINS[name](mx.sym.var("x"))
    swapped, report = swap_symbol(native, regions=True)
    assert types(swapped) == ["ocl_region"], str(report)
    assert swapped.list_outputs() == native.list_outputs()
    compare(swapped, native, arrays_of(native, rng, dtype), rng, dtype=dtype, requests=["write", "add"])


def norm(x, name="norm", **keys):
    return mx.sym.BatchNorm(x, name=name, fix_gamma=False, **keys)


FOLLOWERS = {
    "relu": lambda y: mx.sym.Activation(y, act_type="relu", name="last"),
    "relu6": lambda y: mx.sym.clip(y, 0, 6, name="last"),
    "leaky": lambda y: mx.sym.LeakyReLU(y, act_type="leaky", name="last"),
}


@pytest.mark.parametrize("train", [True, False], ids=["train", "infer"])
@pytest.mark.parametrize("name", FOLLOWERS)
def test_a_batch_norm_and_its_activation(name, train, rng):
    native = FOLLOWERS[name](norm(conv(mx.sym.var("x"))))
    swapped, report = swap_symbol(native, regions=True)
    assert types(swapped) == ["ocl_region"], str(report)
    assert swapped.list_inputs() == native.list_inputs()
    dtype = "float32" if name == "leaky" else "float64"  # MXNet computes leaky in single precision
    states = {"moving_mean": random(rng, 5, dtype=dtype), "moving_var": (0.5 + rng.random(5)).astype(dtype)}
    states = {f"norm_{key}": value for key, value in states.items()}
    arrays = arrays_of(native, rng, dtype)
    compare(swapped, native, arrays, rng, dtype=dtype, train=train, auxiliary=states, requests=["write", "add"])


def test_long_chains(rng):
    x = y = conv(mx.sym.var("x"))
    for _ in range(40):
        y = mx.sym.tanh(y) + x
    swapped, _ = swap_symbol(y, regions=True)
    data = {"x": np.ones((1, 2, 3, 3), "float32"), "conv_weight": np.full((5, 2, 1, 1), 0.1, "float32")}
    np.testing.assert_allclose(evaluate(swapped, data).outputs[0], evaluate(y, data).outputs[0], rtol=1e-5)


def test_fuse_means_regions():
    native = CHAINS["sum-relu"](mx.sym.var("x"))
    with pytest.warns(DeprecationWarning, match="fuse is deprecated and means regions"):
        swapped, _ = swap_symbol(native, fuse=True, regions=None)
    assert swapped.tojson() == swap_symbol(native, regions=True)[0].tojson()
    with pytest.warns(DeprecationWarning):
        assert "ocl_region" not in types(swap_symbol(native, fuse=False, regions=None)[0])
    for fuse, regions in ((True, None), (False, None), (False, True)):
        net = gluon.nn.HybridSequential()
        net.add(gluon.nn.Conv2D(2, 3, in_channels=3), gluon.nn.Activation("relu"))
        with pytest.warns(DeprecationWarning) as caught:
            report = swap_block(net, fuse=fuse, regions=regions)
        assert caught[0].filename == __file__ and report.regions
    for swap, model in ((swap_symbol, native), (swap_block, gluon.nn.HybridSequential())):
        with pytest.raises(ProblemError, match="got fuse=True and regions=False, expected regions alone"):
            swap(model, fuse=True, regions=False)
