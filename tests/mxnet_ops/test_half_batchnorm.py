"""Batch norm of float16 data: its parameters and statistics are float32, as MXNet and Gluon have them, or float16."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

from clgraft.core import ClgraftError
from clgraft.mxnet_ops import swap_block, swap_symbol
from tests.mxnet_ops.operator_checks import assert_close, compare, evaluate, random

sym = mx.sym
SHAPES = [(4, 3, 5, 7), (6, 5), (4, 2, 3), (1, 7, 2, 2)]


def small() -> gluon.HybridBlock:
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(
            nn.BatchNorm(),
            nn.Activation("relu"),
            nn.BatchNorm(use_global_stats=True),
            nn.Activation("tanh"),
            nn.BatchNorm(),
        )
    return net


def run(net, data, train: bool) -> dict[str, np.ndarray]:
    x = mx.nd.array(data, dtype=data.dtype)
    x.attach_grad()
    head = mx.nd.array(np.random.default_rng(1).standard_normal(data.shape).astype("float16"), dtype=data.dtype)
    with autograd.record(train_mode=train):
        y = net(x)
    y.backward(head, train_mode=train)
    mx.nd.waitall()
    found = {"y": y.asnumpy(), "dx": x.grad.asnumpy()}
    for name, parameter in net.collect_params().items():
        found[name] = parameter.data().asnumpy()
        if parameter.grad_req != "null":
            found[f"d {name}"] = parameter.grad().asnumpy()
    return found


def made(swap: str, hybrid: bool, dtype: str = "float16", **options):
    mx.random.seed(2)
    net = small()
    net.initialize()
    rng = np.random.default_rng(3)
    net(mx.nd.zeros((2, 3, 4, 4)))
    for parameter in net.collect_params().values():
        parameter.set_data(mx.nd.array(rng.uniform(0.5, 1.5, parameter.shape)))
    if hybrid:
        net.hybridize()
    if swap == "before":
        swap_block(net, **options)
    net.cast(dtype)
    if swap == "after":
        swap_block(net, **options)
    return net


@pytest.mark.parametrize("regions", [True, False])
@pytest.mark.parametrize("train", [True, False], ids=["training", "eval"])
@pytest.mark.parametrize("hybrid", [True, False], ids=["hybrid", "imperative"])
@pytest.mark.parametrize("swap", ["before", "after"])
def test_a_net_that_is_cast(swap, hybrid, train, regions, rng):
    data = random(rng, 4, 3, 5, 7, dtype="float16")
    expected = run(made("", hybrid), data, train)
    got = run(made(swap, hybrid, regions=regions), data, train)
    exact = run(made("", False, "float64"), data.astype("float64"), train)
    assert list(got) == list(expected)
    for name, value in expected.items():
        assert got[name].dtype == value.dtype, name
        scale = float(np.abs(exact[name]).max())
        ours, native = (float(np.abs(one[name].astype("float64") - exact[name]).max()) for one in (got, expected))
        assert ours <= 2 * native + 2e-3 * scale, f"{name}: {ours} of {scale}, MXNet's {native}"
    assert expected["net_batchnorm0_running_mean"].dtype == np.float32


def test_frozen_parameters(rng):
    data = mx.nd.array(random(rng, 4, 3, 5, 7), dtype="float16")
    nets = made("", True), made("after", True, regions=True, frozen=True)
    expected, *got = (net(data).asnumpy() for net in (*nets, nets[1]))
    for one in got:
        assert one.dtype == np.float16
        assert_close(one, expected, "float16")


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(
    "keys", [{}, {"use_global_stats": True}, {"fix_gamma": True}, {"axis": -1}, {"act_type": "relu"}], ids=str
)
@pytest.mark.parametrize("train", [True, False])
def test_one_operator(shape, keys, train, rng):
    activated = "act_type" in keys
    more = {"fix_gamma": False, "eps": 1e-3, **keys}
    ours = sym.Custom(sym.var("data"), op_type="ocl_batchnorm", name="b", **more)
    more.pop("act_type", None)
    native = sym.BatchNorm(sym.var("data"), name="b", **more)
    native = sym.Activation(native, act_type="relu") if activated else native
    count = (shape[keys.get("axis", 1)],)
    arrays = {"b_gamma": random(rng, *count), "b_beta": random(rng, *count)}
    arrays["data"] = random(rng, *shape, dtype="float16")
    if more["fix_gamma"]:
        arrays["b_gamma"][:] = 1
    states = {"b_moving_mean": random(rng, *count), "b_moving_var": np.float32(rng.uniform(0.5, 2, count))}
    if activated:
        head = random(rng, *shape, dtype="float16")
        got, expected = (evaluate(s, arrays, [head], train=train, auxiliary=states) for s in (ours, native))
        assert_close(got.outputs[0], expected.outputs[0], "float16")
        return  # where a norm rounds to 0 the rectifiers' gradients may differ
    compare(ours, native, arrays, rng, dtype="float16", train=train, auxiliary=states)


def test_parameters_in_half_precision_are_served_too(rng):
    ours = sym.Custom(sym.var("data"), op_type="ocl_batchnorm", name="b", fix_gamma=False)
    native = sym.BatchNorm(sym.var("data"), name="b", fix_gamma=False)
    arrays = {"data": random(rng, 4, 3, 5), "b_gamma": random(rng, 3), "b_beta": random(rng, 3)}
    states = {"b_moving_mean": np.zeros(3, "float32"), "b_moving_var": np.ones(3, "float32")}
    halves = [{name: value.astype("float16") for name, value in group.items()} for group in (arrays, states)]
    got = evaluate(ours, halves[0], auxiliary=halves[1]).outputs[0]
    assert_close(got, evaluate(native, arrays, auxiliary=states).outputs[0], "float16")


def test_types_follow_the_data():
    symbols = [
        sym.BatchNorm(sym.var("data"), name="b"),
        sym.Custom(sym.var("data"), op_type="ocl_batchnorm", name="b"),
        swap_symbol(sym.BatchNorm(sym.relu(sym.tanh(sym.var("data", dtype="float16"))), name="b"), regions=True)[0],
    ]
    for dtype in ("float16", "float32", "float64"):
        native, *ours = (symbol.infer_type(data=dtype) for symbol in symbols)
        assert all(types == native for types in ours[: 1 if dtype != "float16" else 2])


def test_what_is_of_another_type_is_named():
    data = mx.nd.ones((2, 3), dtype="float16")
    single, half, double = (mx.nd.ones(3, dtype=dtype) for dtype in ("float32", "float16", "float64"))
    for arrays, text in (
        ((single, single, single, half), "moving_var of dtype float16 next to the others, expected one dtype: gamma"),
        ((double, single, single, single), "gamma of dtype float64 next to the others, expected one dtype: beta is"),
    ):
        with pytest.raises(ClgraftError) as error:
            mx.nd.Custom(data, *arrays, op_type="ocl_batchnorm")
        assert text in str(error.value)
    _, report = swap_symbol(sym.BatchNorm(sym.var("x", dtype="float16")))
    assert not report.kept
