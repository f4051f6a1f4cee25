"""Batch norm compared with MXNet's own."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest

from tests.mxnet_ops.operator_checks import assert_close, compare, evaluate, numeric_gradients, random

SHAPES = [(2, 3, 4, 5), (7, 5, 1, 1), (1, 2, 13, 1), (5, 4), (3, 2, 11), (2, 3, 2, 3, 4), (33, 1, 3, 3)]


def pair(**keys):
    data = mx.sym.var("data")
    return mx.sym.Custom(data, op_type="ocl_batchnorm", name="b", **keys), mx.sym.BatchNorm(data, name="b", **keys)


def inputs(shape, rng, dtype="float32", axis=1):
    channels = shape[axis]
    arrays = {
        "data": (3 + 2 * random(rng, *shape)).astype(dtype),
        "b_gamma": (1 + 0.3 * random(rng, channels)).astype(dtype),
        "b_beta": random(rng, channels, dtype=dtype),
    }
    states = {
        "b_moving_mean": random(rng, channels, dtype=dtype),
        "b_moving_var": (0.5 + rng.random(channels)).astype(dtype),
    }
    return arrays, states


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("train", [True, False], ids=["train", "infer"])
def test_batch_norm_is_mxnets(shape, train, rng):
    arrays, states = inputs(shape, rng, "float64")
    compare(*pair(fix_gamma=False, eps=1e-3), arrays, rng, dtype="float64", train=train, auxiliary=states)


@pytest.mark.parametrize("train", [True, False], ids=["train", "infer"])
@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"fix_gamma": False, "momentum": 0.5, "eps": 1e-5},
        {"use_global_stats": True, "fix_gamma": False},
        {"use_global_stats": True},
        {"fix_gamma": False, "cudnn_off": True},
    ],
    ids=str,
)
def test_attributes_in_float32(keys, train, rng):
    arrays, states = inputs((4, 3, 6, 5), rng)
    compare(*pair(**keys), arrays, rng, train=train, auxiliary=states, requests=["write", "add"])


@pytest.mark.parametrize("axis", [0, 1, 2, 3, -1])
def test_any_axis(axis, rng):
    arrays, states = inputs((4, 3, 6, 5), rng, "float64", axis)
    compare(*pair(axis=axis, fix_gamma=False), arrays, rng, dtype="float64", auxiliary=states, requests=["write"])


ACTIVATIONS = {
    "relu": ({}, lambda y: mx.sym.Activation(y, act_type="relu")),
    "relu_keep_nan": ({}, mx.sym.relu),
    # MXNet's own leaky computes in single precision whatever the dtype
    "leaky": ({"slope": 0.125}, lambda y: mx.sym._internal._maximum(y, 0.125 * y)),
    "clip": ({"a_min": -0.5, "a_max": 1.5}, lambda y: mx.sym.clip(y, -0.5, 1.5)),
}


@pytest.mark.parametrize("train", [True, False], ids=["train", "infer"])
@pytest.mark.parametrize("keys", [{"fix_gamma": False}, {}, {"use_global_stats": True}], ids=str)
@pytest.mark.parametrize("act_type", ACTIVATIONS)
def test_an_activation_behind(act_type, keys, train, rng):
    own, native = ACTIVATIONS[act_type]
    arrays, states = inputs((4, 3, 6, 5), rng, "float64")
    plain = pair(**keys)[1]
    ours = mx.sym.Custom(mx.sym.var("data"), op_type="ocl_batchnorm", name="b", act_type=act_type, **own, **keys)
    requests = ["write", "add"]
    compare(ours, native(plain), arrays, rng, dtype="float64", train=train, auxiliary=states, requests=requests)


@pytest.mark.parametrize("train", [True, False], ids=["train", "infer"])
def test_mean_and_inverse_deviation_as_outputs(train, rng):
    arrays, states = inputs((4, 3, 6, 5), rng, "float64")
    keys = {"output_mean_var": True, "fix_gamma": False}
    ours, native = pair(**keys)
    assert len(ours.list_outputs()) == 3
    heads = [random(rng, 4, 3, 6, 5, dtype="float64"), np.zeros(3), np.zeros(3)]
    got = evaluate(ours, arrays, heads, train=train, auxiliary=states)
    expected = evaluate(native, arrays, heads, train=train, auxiliary=states)
    for one, other in zip(got.outputs, expected.outputs):
        assert_close(one, other, "float64")
    for name in arrays:
        assert_close(got.gradients[name], expected.gradients[name], "float64", name)


def test_numeric_gradients(rng):
    arrays, states = inputs((3, 2, 4, 3), rng, "float64")
    for keys, train in (({"fix_gamma": False}, True), ({"fix_gamma": False, "use_global_stats": True}, True)):
        numeric_gradients(pair(**keys)[0], arrays, rng, train=train, auxiliary=states)


def test_mean_far_above_the_deviation(rng):
    arrays, states = inputs((4, 3, 16, 15), rng)
    arrays["data"] = (1000 + random(rng, 4, 3, 16, 15)).astype("float32")
    ours, _ = pair(fix_gamma=False, eps=1e-5)
    got = evaluate(ours, arrays, auxiliary=states).outputs[0]
    x = arrays["data"].astype("float64")
    mean, var = x.mean((0, 2, 3), keepdims=True), x.var((0, 2, 3), keepdims=True)
    gamma, beta = (arrays[f"b_{name}"].astype("float64").reshape(1, 3, 1, 1) for name in ("gamma", "beta"))
    expected = (x - mean) / np.sqrt(var + 1e-5) * gamma + beta
    # the mean itself, rounded to float32, is off by up to 3e-5 deviations
    assert np.abs(got - expected).max() < 1e-4


def test_moving_statistics_follow_mxnets_over_steps_in_gluon(rng):
    x = [mx.nd.array(random(rng, 4, 3, 5, 5) * (i + 1) + i) for i in range(4)]
    states = {}
    for op_type in ("native", "ocl"):
        moving = [mx.nd.zeros(3), mx.nd.ones(3)]
        gamma, beta = mx.nd.ones(3), mx.nd.zeros(3)
        gamma.attach_grad()
        for step in x:
            with mx.autograd.record():
                if op_type == "ocl":
                    y = mx.nd.Custom(step, gamma, beta, *moving, op_type="ocl_batchnorm", fix_gamma=False)
                else:
                    y = mx.nd.BatchNorm(step, gamma, beta, *moving, fix_gamma=False)
            y.backward()
            mx.nd.waitall()
        states[op_type] = [array.asnumpy() for array in moving]
    for one, other in zip(states["ocl"], states["native"]):
        assert_close(one, other)


def test_gradient_of_a_fixed_gamma_is_zero_or_left_alone(rng):
    arrays, states = inputs((2, 3, 4, 4), rng)
    ours, _ = pair()
    head = [random(rng, 2, 3, 4, 4)]
    assert (evaluate(ours, arrays, head, auxiliary=states).gradients["b_gamma"] == 0).all()
    added = evaluate(ours, arrays, head, requests="add", start=2.0, auxiliary=states)
    assert (added.gradients["b_gamma"] == 2).all()


def test_shapes_follow_from_data():
    ours, _ = pair()
    arguments, outputs, states = ours.infer_shape(data=(2, 5, 3, 3))
    assert arguments == [(2, 5, 3, 3), (5,), (5,)] and outputs == [(2, 5, 3, 3)] and states == [(5,), (5,)]
    assert ours.list_auxiliary_states() == ["b_moving_mean", "b_moving_var"]
