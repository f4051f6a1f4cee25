"""Chains of elementwise operators, and norms with the activation after them: in regions, and alone by `fuse`."""

from __future__ import annotations

import json

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon

from clgraft.mxnet_ops import swap_block, swap_symbol
from tests.mxnet_ops.operator_checks import assert_close, compare, evaluate, random

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


@pytest.mark.parametrize("name", CHAINS)
def test_a_fused_chain_computes_the_same(name, rng):
    native = CHAINS[name](mx.sym.var("x"))
    swapped, report = swap_symbol(native, regions=False, fuse=True)
    expect_face(swapped, native)
    assert types(swapped)[-1] == "ocl_region" and set(types(swapped)[:-1]) <= {"ocl_conv"}, str(report)
    compare(swapped, native, arrays_of(native, rng, "float64"), rng, dtype="float64", requests=["write", "add"])


@pytest.mark.parametrize("train", [True, False], ids=["train", "infer"])
@pytest.mark.parametrize("name", FOLLOWERS)
def test_a_fused_batch_norm_and_its_activation(name, train, rng):
    native = FOLLOWERS[name](norm(conv(mx.sym.var("x"))))
    swapped, report = swap_symbol(native, regions=False, fuse=True)
    expect_face(swapped, native)
    assert types(swapped) == ["ocl_region"], str(report)
    assert report.regions == {"last": ["conv", "norm", "last"]}
    assert [row.became for row in report.rows] == ["ocl_conv", "ocl_batchnorm", "ocl_activation"]
    states = {"norm_moving_mean": random(rng, 5), "norm_moving_var": (0.5 + rng.random(5)).astype("float32")}
    arrays = arrays_of(native, rng, "float32")
    compare(swapped, native, arrays, rng, train=train, auxiliary=states, requests=["write", "add"])


def expect_face(swapped, native) -> None:
    for names in ("list_arguments", "list_auxiliary_states", "list_outputs"):
        assert getattr(swapped, names)() == getattr(native, names)()


def test_chains_end_where_a_value_is_seen_or_read_twice():
    inner = mx.sym.tanh(norm(conv(mx.sym.var("x"))), name="shown")
    twice = mx.sym.sigmoid(mx.sym.square(inner, name="squared"), name="twice")
    last = mx.sym.elemwise_add(conv(twice, "other"), mx.sym.exp(twice, name="exp"), name="last")
    native = mx.sym.Group([last, inner])
    swapped, report = swap_symbol(native, regions=False, fuse=True)
    expect_face(swapped, native)
    found = {name: set(inside) for name, inside in report.regions.items()}
    assert found == {
        "shown": {"conv", "norm", "shown"},
        "twice": {"squared", "twice"},
        "last": {"other", "exp", "last"},
    }
    visible = set(swapped.get_internals().list_outputs())
    assert "twice_output" in visible and not {"conv_output", "norm_output", "exp_output"} & visible


def test_reductions_pooling_and_what_leads_to_a_layer_are_in_no_chain():
    keys = {"expression": "y0 = x0;", "gradient": "dx0 = dy0;", "op_type": "ocl_pointwise"}
    x = norm(mx.sym.tanh(mx.sym.var("x", dtype="float32")))
    total = mx.sym.Custom(conv(conv(x), "second"), reduction="sum", axis=(1,), keepdims=True, **keys)
    swapped, report = swap_symbol(
        mx.sym.relu(mx.sym.Pooling(total, kernel=(2, 2), pool_type="max")), regions=False, fuse=True
    )
    assert len(types(swapped)) == 7 and not report.regions and "ocl_region" not in types(swapped), str(report)


def test_equal_chains_are_one_operator():
    x = mx.sym.var("x")
    for name in ("first", "second"):
        x = mx.sym.relu(norm(conv(x, f"{name}_conv"), f"{name}_norm"), name=name)
    swapped, report = swap_symbol(x, regions=False, fuse=True)
    nodes = [node for node in json.loads(swapped.tojson())["nodes"] if node["op"] == "Custom"]
    assert list(report.regions) == ["first", "second"] and nodes[0]["attrs"] == nodes[1]["attrs"]


def test_a_value_that_one_chain_alone_reads_twice_is_inside():
    def net(x, name):
        x = norm(conv(x, f"{name}_conv"), f"{name}_norm")
        return mx.sym.elemwise_mul(x, mx.sym.sigmoid(x, name=f"{name}_sigmoid"), name=name)

    x = net(mx.sym.var("x"), "first")
    native = mx.sym.elemwise_add(net(x, "second"), mx.sym.tanh(x, name="tanh"), name="last")
    found = {name: set(inside) for name, inside in swap_symbol(native, regions=False, fuse=True)[1].regions.items()}
    first = {f"first{end}" for end in ("", "_conv", "_norm", "_sigmoid")}
    assert found == {"first": first, "last": {"last", "tanh", *(n.replace("first", "second") for n in first)}}


def test_regions_hold_the_chains():
    native = CHAINS["sum-relu"](mx.sym.var("x"))
    assert swap_symbol(native, regions=True, fuse=True)[0].tojson() == swap_symbol(native, regions=True)[0].tojson()
    assert "ocl_region" not in types(swap_symbol(native, regions=False)[0])


def layers() -> gluon.nn.HybridSequential:
    net = gluon.nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(gluon.nn.Conv2D(4, 3, in_channels=3, use_bias=False), gluon.nn.BatchNorm(), gluon.nn.Activation("relu"))
        net.add(gluon.nn.Dense(6), gluon.nn.Activation("tanh"), gluon.nn.Swish())
    return net


def test_blocks_have_chains_without_regions_too(rng, monkeypatch):
    monkeypatch.setenv("CLGRAFT_PRECISION", "bfloat16")  # of regions: chains are the operators, in float32
    x, head, results = random(rng, 3, 3, 8, 7), random(rng, 3, 6), {}
    ways = {"native": None, "chains": {"regions": False}, "operators": {"regions": False, "fuse": False}}
    for way, options in ways.items():
        mx.random.seed(3)
        net = layers()
        net.initialize()
        report = None if options is None else swap_block(net, **options)
        net.hybridize()
        data = mx.nd.array(x)
        data.attach_grad()
        for _ in range(2):
            with mx.autograd.record():
                y = net(data)
            y.backward(mx.nd.array(head))
        found = {name: p.data().asnumpy() for name, p in net.collect_params().items()}
        found.update({f"d {n}": p.grad().asnumpy() for n, p in net.collect_params().items() if p.grad_req != "null"})
        results[way] = {**found, "y": y.asnumpy(), "dx": data.grad.asnumpy(), "inferred": net(data).asnumpy()}
        if report is not None:
            joined = types(net._cached_graph[1])
            fused = ["ocl_region"] * 2
            assert (joined == fused) == bool(report.regions) == (way == "chains"), (joined, str(report))
            assert not report.kept and not report.precision
    for way in ("chains", "operators"):
        for name, value in results["native"].items():
            assert_close(results[way][name], value, what=f"{way}, {name}")


def test_a_report_of_many_regions_counts_them():
    values = [mx.sym.tanh(conv(mx.sym.var("x"), f"c{i}"), name=f"last{i}") for i in range(9)]
    found = [str(swap_symbol(mx.sym.Group(values[:count]), regions=False, fuse=True)[1]) for count in (8, 9)]
    assert "; regions: last0 (2 operators), last1" in found[0] and found[1].endswith("; regions: 9 of 18 operators")
