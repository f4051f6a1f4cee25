"""Chains of operators as one: values and gradients of the chain, and what must not become one."""

from __future__ import annotations

import json

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon

from clgraft.mxnet_ops import swap_block, swap_symbol
from tests.mxnet_ops.graft_checks import compare, evaluate, random

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


def grafts(symbol) -> list[str]:
    nodes = json.loads(symbol.tojson())["nodes"]
    return [node["attrs"]["op_type"] for node in nodes if node["op"] == "Custom"]


def arrays_of(symbol, rng, dtype):
    shapes = symbol.infer_shape(x=SHAPE)[0]
    return {name: random(rng, *shape, dtype=dtype) for name, shape in zip(symbol.list_arguments(), shapes)}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_computes_the_same(name, dtype, rng):
    native = CHAINS[name](mx.sym.var("x"))
    fused, report = swap_symbol(native, fuse=True, regions=False)
    assert grafts(fused).count("ocl_pointwise") == 1
    assert not {"ocl_activation", "ocl_eltwise"} & set(grafts(fused)), str(report)
    assert fused.list_outputs() == native.list_outputs()
    assert sum(row.graft == "ocl_pointwise" for row in report.replaced) > 1
    compare(fused, native, arrays_of(native, rng, dtype), rng, dtype=dtype, requests=["write", "add"])


def norm(x, name="norm", **keys):
    return mx.sym.BatchNorm(x, name=name, fix_gamma=False, **keys)


FOLLOWERS = {
    "relu": lambda y: mx.sym.Activation(y, act_type="relu", name="last"),
    "relu6": lambda y: mx.sym.clip(y, 0, 6, name="last"),
    "leaky": lambda y: mx.sym.LeakyReLU(y, act_type="leaky", name="last"),
}


@pytest.mark.parametrize("train", [True, False], ids=["train", "infer"])
@pytest.mark.parametrize("name", FOLLOWERS)
def test_a_batch_norm_takes_in_its_activation(name, train, rng):
    native = FOLLOWERS[name](norm(conv(mx.sym.var("x"))))
    fused, report = swap_symbol(native, fuse=True, regions=False)
    assert grafts(fused) == ["ocl_conv", "ocl_batchnorm"], str(report)
    assert [row.graft for row in report.replaced] == ["ocl_conv", "ocl_batchnorm", "ocl_batchnorm"]
    assert fused.list_outputs() == native.list_outputs()
    assert fused.list_inputs() == native.list_inputs()
    dtype = "float32" if name == "leaky" else "float64"  # MXNet computes leaky in single precision
    states = {"moving_mean": random(rng, 5, dtype=dtype), "moving_var": (0.5 + rng.random(5)).astype(dtype)}
    states = {f"norm_{key}": value for key, value in states.items()}
    arrays = arrays_of(native, rng, dtype)
    compare(fused, native, arrays, rng, dtype=dtype, train=train, auxiliary=states, requests=["write", "add"])


def test_batch_norms_that_stay_alone():
    x = conv(mx.sym.var("x"))
    seen = norm(x)
    cases = [
        mx.sym.Group([mx.sym.relu(seen), seen]),
        mx.sym.Group([mx.sym.relu(seen), mx.sym.tanh(seen)]),
        mx.sym.tanh(seen),
        mx.sym.LeakyReLU(seen, act_type="prelu"),
        mx.sym.elemwise_add(seen, seen),
        mx.sym.relu(norm(x, output_mean_var=True)[1]),
    ]
    for native in cases:
        fused, _ = swap_symbol(native, fuse=True, regions=False)
        nodes = json.loads(fused.tojson())["nodes"]
        norms = [node["attrs"] for node in nodes if node.get("attrs", {}).get("op_type") == "ocl_batchnorm"]
        assert [attributes.get("act_type", "none") for attributes in norms] == ["none"], native.list_outputs()
    twice = FOLLOWERS["relu"](norm(FOLLOWERS["relu6"](norm(x, "a")), "b"))
    assert grafts(swap_symbol(twice, fuse=True, regions=False)[0]) == ["ocl_conv", "ocl_batchnorm", "ocl_batchnorm"]


def test_values_that_others_read_stay(rng):
    x = conv(mx.sym.var("x"))
    middle = mx.sym.tanh(x, name="middle")
    native = mx.sym.Group([mx.sym.exp(middle, name="last"), middle])
    fused, _ = swap_symbol(native, fuse=True, regions=False)
    assert grafts(fused).count("ocl_activation") == 2 and "ocl_pointwise" not in grafts(fused)
    compare(fused, native, arrays_of(native, rng, "float32"), rng, requests=["write"])
    native = mx.sym.Pooling(middle, kernel=(2, 2)) + mx.sym.Pooling(mx.sym.exp(middle), kernel=(2, 2))
    fused, _ = swap_symbol(native, fuse=True, regions=False)
    assert sorted(g for g in grafts(fused) if g in ("ocl_activation", "ocl_eltwise")) == ["ocl_activation"] * 2 + [
        "ocl_eltwise"
    ]
    compare(fused, native, arrays_of(native, rng, "float32"), rng, requests=["write"])


def test_learned_slopes_broadcasts_and_variables_do_not_join(rng):
    x = conv(mx.sym.var("x"))
    slopes = mx.sym.exp(mx.sym.LeakyReLU(x, act_type="prelu", name="slopes"))
    assert "ocl_pointwise" not in grafts(swap_symbol(slopes, fuse=True, regions=False)[0])
    wide = mx.sym.exp(mx.sym.broadcast_mul(x, mx.sym.mean(x, axis=(2, 3), keepdims=True)))
    assert "ocl_pointwise" not in grafts(swap_symbol(wide, fuse=True, regions=False)[0])
    learned = mx.sym.exp(mx.sym.elemwise_add(x, mx.sym.var("w")))
    fused, _ = swap_symbol(learned, fuse=True, regions=False)
    assert "ocl_pointwise" not in grafts(fused)
    compare(fused, learned, arrays_of(learned, rng, "float32"), rng, requests=["write"])


def test_selection_rules(rng):
    native = CHAINS["sum-relu"](mx.sym.var("x"))
    fused, _ = swap_symbol(native, select=["Convolution", "Activation"], fuse=True, regions=False)
    assert "ocl_pointwise" not in grafts(fused)
    compare(fused, native, arrays_of(native, rng, "float32"), rng, requests=["write"])


def test_many_operators_are_cut():
    x = y = conv(mx.sym.var("x"))
    for _ in range(40):
        y = mx.sym.tanh(y) + x
    fused, _ = swap_symbol(y, fuse=True, regions=False)
    assert grafts(fused).count("ocl_pointwise") == 4
    data = {"x": np.ones((1, 2, 3, 3), "float32"), "conv_weight": np.full((5, 2, 1, 1), 0.1, "float32")}
    np.testing.assert_allclose(evaluate(fused, data).outputs[0], evaluate(y, data).outputs[0], rtol=1e-5)


def test_a_residual_net(rng):
    class Block(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            self.first, self.second = (gluon.nn.Conv2D(6, 3, padding=1) for _ in range(2))

        def hybrid_forward(self, F, x):
            return F.relu(self.second(F.relu(self.first(x))) + x)

    net = gluon.nn.HybridSequential()
    net.add(Block(), Block(), gluon.nn.Dense(3))
    net.initialize(mx.init.Xavier())
    net.hybridize()
    x = mx.nd.array(random(rng, 2, 6, 8, 8))

    def step():
        with autograd.record():
            y = net(x)
        y.backward()
        return [y.asnumpy()] + [p.grad().asnumpy() for p in net.collect_params().values()]

    expected = step()
    report = swap_block(net, fuse=True)
    # the first block adds a variable, whose shape may have to follow from the sum
    assert sum(row.graft == "ocl_pointwise" for row in report.replaced) == 2
    for got, wanted in zip(step(), expected):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5 * np.abs(wanted).max())
