"""Inputs that MXNet's own operators take: sparse arrays, slopes of data's shape, one-dimensional data."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest
from mxnet.gluon import nn

from clgraft import core
from clgraft.mxnet_ops import swap_block, swap_symbol
from tests.mxnet_ops.operator_checks import assert_close, evaluate, random


@pytest.mark.parametrize("stype", ["csr", "row_sparse"])
def test_sparse_arrays_are_made_dense(stype, rng):
    data = random(rng, 4, 5) * (rng.random((4, 5)) > 0.5)
    weight, bias, head = random(rng, 3, 5), random(rng, 3), random(rng, 4, 3)
    native = mx.sym.FullyConnected(mx.sym.var("x"), num_hidden=3, name="f")
    swapped, report = swap_symbol(native)
    assert report.replaced
    results = []
    for symbol in (native, swapped):
        arrays = {"x": mx.nd.array(data).tostype(stype), "f_weight": mx.nd.array(weight), "f_bias": mx.nd.array(bias)}
        gradients = {name: mx.nd.zeros(arrays[name].shape) for name in ("f_weight", "f_bias")}
        executor = symbol.bind(mx.cpu(), arrays, args_grad=gradients)
        output = executor.forward(is_train=True)[0].asnumpy()
        executor.backward(mx.nd.array(head))
        results.append([output, *(gradients[name].asnumpy() for name in sorted(gradients))])
    for got, expected in zip(results[1], results[0]):
        assert_close(got, expected)


@pytest.mark.parametrize("shape", [(3, 4), (7,)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_learned_slope_for_each_element(shape, dtype, rng):
    native = mx.sym.LeakyReLU(mx.sym.var("x"), gamma=mx.sym.var("gamma"), act_type="prelu", name="p")
    swapped, report = swap_symbol(native)
    assert report.replaced
    x, gamma, head = (random(rng, *shape, dtype=dtype) for _ in range(3))
    # MXNet computes it in single precision, and its gradient of gamma can be wrong: see docs/mxnet.md
    assert_close(*(evaluate(s, {"x": x, "gamma": gamma}).outputs[0] for s in (swapped, native)))
    got = evaluate(swapped, {"x": x, "gamma": gamma}, [head])
    assert_close(got.outputs[0], np.where(x > 0, x, gamma * x), dtype)
    assert_close(got.gradients["x"], np.where(x > 0, head, gamma * head), dtype)
    assert_close(got.gradients["gamma"], np.where(x > 0, 0, x * head), dtype)


@pytest.mark.parametrize("train", [True, False], ids=["train", "infer"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("keys", [{}, {"normalization": "valid"}, {"preserve_shape": True}], ids=str)
def test_softmax_output_of_a_vector(keys, dtype, train, rng):
    """In inference MXNet's float32 is one example of as many classes, else as many examples of one class."""
    native = mx.sym.SoftmaxOutput(mx.sym.var("data"), mx.sym.var("label"), name="s", **keys)
    swapped, report = swap_symbol(native)
    assert report.replaced
    arrays = {"data": random(rng, 5, dtype=dtype), "label": rng.random(5).astype(dtype)}
    got, expected = (evaluate(symbol, arrays, train=train).outputs[0] for symbol in (swapped, native))
    assert_close(got, expected, "float32")


@pytest.mark.parametrize("devices", [1, 2])
def test_synchronous_batch_norm_of_one_device_is_replaced(devices, rng):
    native = mx.sym.contrib.SyncBatchNorm(mx.sym.var("x"), ndev=devices, key="k", fix_gamma=False, name="b")
    swapped, report = swap_symbol(native)
    assert bool(report.replaced) == (devices == 1)
    if devices == 1:
        arrays = {"x": random(rng, 4, 3, 5, 5), "b_gamma": random(rng, 3), "b_beta": random(rng, 3)}
        states = {"b_moving_mean": np.zeros(3, "float32"), "b_moving_var": np.ones(3, "float32")}
        assert_close(*(evaluate(s, arrays, auxiliary=states).outputs[0] for s in (swapped, native)))


def test_gradients_of_gradients_name_the_operator():
    x = mx.nd.ones((2, 3))
    x.attach_grad()
    with pytest.raises(mx.MXNetError) as error, mx.autograd.record():
        y = mx.nd.Custom(x, op_type="ocl_activation", act_type="tanh")
        (mx.autograd.grad(y, [x], create_graph=True)[0] ** 2).sum().backward()
    assert str(error.value).startswith("[ocl_activation] got a gradient of a gradient"), error.value


@pytest.mark.parametrize("regions", [False, True], ids=["operators", "regions"])
@pytest.mark.parametrize("static", [False, True], ids=["hybrid", "static"])
def test_gradients_of_gradients_of_a_hybridized_net_name_its_operators(static, regions):
    net = nn.HybridSequential()
    net.add(nn.Dense(3), nn.Activation("tanh"))
    net.initialize()
    swap_block(net, regions=regions, fuse=False)
    net.hybridize(static_alloc=static, static_shape=static)
    x = mx.nd.ones((2, 4))
    x.attach_grad()
    with pytest.raises(core.ProblemError) as error, mx.autograd.record():
        (mx.autograd.grad(net(x), [x], create_graph=True)[0] ** 2).sum().backward()
    named = "ocl_region" if regions else "ocl_fully_connected, ocl_activation"
    assert str(error.value).startswith(f"[{named}] got a gradient of a gradient"), error.value
    with mx.autograd.record():  # the names of the failed call are gone
        y = net(x)
    y.backward()
    assert np.isfinite(x.grad.asnumpy()).all()


SPARSE = {
    "sum": (lambda x, w: mx.sym.elemwise_add(x, w, name="s"), (4, 5)),
    "product": (lambda x, w: mx.sym.elemwise_mul(x, w, name="s"), (4, 5)),
    "weight": (lambda x, w: mx.sym.FullyConnected(x, w, num_hidden=3, no_bias=True, name="f"), (3, 5)),
}


@pytest.mark.parametrize("regions", [False, True], ids=["operators", "regions"])
@pytest.mark.parametrize("hybrid", [False, True], ids=["executor", "hybrid"])
@pytest.mark.parametrize("name", SPARSE)
def test_sparse_parameters(name, hybrid, regions, rng):
    """They are given to operators whose inputs tell each other their shapes."""
    make, shape = SPARSE[name]
    x, w = mx.sym.var("x", dtype="float32"), mx.sym.var("w", dtype="float32")
    native = mx.sym.tanh(make(x, w), name="t")
    swapped, report = swap_symbol(native, regions=regions)
    assert not report.kept
    data, weight = random(rng, 4, 5), random(rng, *shape) * (rng.random((shape[0], 1)) > 0.5)
    expected = evaluate(native, {"x": data, "w": weight}).outputs[0]
    run = mx.nd.CachedOp(swapped)
    for stype in ("default", "row_sparse", "default", "row_sparse"):
        arrays = {"x": mx.nd.array(data), "w": mx.nd.array(weight).tostype(stype)}
        if hybrid:
            got = run(*(arrays[n] for n in swapped.list_inputs()))
        else:
            got = swapped.bind(mx.cpu(), arrays, args_grad={"x": mx.nd.zeros((4, 5))}).forward(is_train=True)[0]
        assert_close(got.asnumpy(), expected)


@pytest.mark.parametrize(
    ("shape", "gamma"),
    [((3, 4, 5), (3, 4)), ((3, 4, 2, 2), (1, 4)), ((3, 4, 2), (3, 1)), ((3, 4, 5), (3,)), ((3, 4), (1, 4))],
    ids=str,
)
def test_learned_slopes_of_examples(shape, gamma, rng):
    native = mx.sym.LeakyReLU(mx.sym.var("x"), gamma=mx.sym.var("gamma"), act_type="prelu", name="p")
    swapped, report = swap_symbol(native)
    assert report.replaced
    arrays, head = {"x": random(rng, *shape), "gamma": random(rng, *gamma)}, random(rng, *shape)
    assert_close(*(evaluate(s, arrays).outputs[0] for s in (swapped, native)))
    got, x = evaluate(swapped, arrays, [head]), arrays["x"]
    wide = arrays["gamma"].reshape((*gamma, *(1,) * (len(shape) - len(gamma)))) * np.ones(shape, "float32")
    assert_close(got.outputs[0], np.where(x > 0, x, wide * x))
    assert_close(got.gradients["x"], np.where(x > 0, head, wide * head))
    slopes, kept = np.where(x > 0, 0, x * head), (*gamma, *(1,) * (len(shape) - len(gamma)))
    axes = tuple(axis for axis, size in enumerate(kept) if size == 1)
    assert_close(got.gradients["gamma"], slopes.sum(axis=axes, keepdims=True).reshape(gamma))
