"""MXNet's Activation and LeakyReLU families: every act_type swapped, in every type, shape and mode."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest

import clgraft.mxnet_ops as ops
from clgraft import core
from tests.mxnet_ops.operator_checks import assert_close, compare, evaluate, random

ACTIVATIONS = [("Activation", name) for name in ("relu", "sigmoid", "softrelu", "softsign", "tanh")]
LEAKY = [("LeakyReLU", name) for name in ("leaky", "elu", "selu", "gelu", "prelu")]
FAMILIES = ACTIVATIONS + LEAKY
# softplus is more accurate here than in MXNet, whose LeakyReLU family computes in single precision for every type
LOOSER = {"softrelu", "leaky", "elu", "selu", "gelu", "prelu"}


def pair(operator: str, act_type: str, **keys):
    native = getattr(mx.sym, operator)(mx.sym.var("data"), act_type=act_type, name="o", **keys)
    swapped, report = ops.swap_symbol(native)
    assert [row.became for row in report.replaced] == ["ocl_activation"] and not report.kept
    assert swapped.list_arguments() == native.list_arguments()
    return swapped, native


def filled(rng, symbol, shape, dtype: str) -> dict[str, np.ndarray]:
    arrays = {"data": 3 * random(rng, *shape, dtype=dtype)}
    arrays["data"].flat[::5] = 0
    if len(symbol.list_arguments()) > 1:
        arrays["o_gamma"] = random(rng, shape[1], dtype=dtype)
    return arrays


@pytest.mark.parametrize("operator, act_type", FAMILIES, ids=lambda name: name)
def test_every_act_type_in_every_type_and_shape(operator, act_type, rng):
    ours, native = pair(operator, act_type)
    for dtype in ("float32", "float64"):
        for shape in ((3, 4), (2, 3, 5), (2, 3, 2, 7), (1, 2, 3, 2, 3)):
            arrays = filled(rng, native, shape, dtype)
            compare(ours, native, arrays, rng, dtype="float32" if act_type in LOOSER else dtype)


@pytest.mark.parametrize("operator, act_type", FAMILIES, ids=lambda name: name)
def test_half_precision_is_mxnets(operator, act_type, rng):
    ours, native = pair(operator, act_type)
    arrays = filled(rng, native, (4, 3, 6, 5), "float16")
    compare(ours, native, arrays, rng, dtype="float16", requests=["write", "add"])


@pytest.mark.parametrize("operator, act_type", FAMILIES, ids=lambda name: name)
def test_the_gradient_at_0_and_minus_0_is_natives(operator, act_type):
    ours, native = pair(operator, act_type)
    arrays = {"data": np.array([[0.0], [-0.0], [1.0], [-1.0]], "float32"), "o_gamma": np.array([0.3], "float32")}
    arrays = {name: arrays[name] for name in native.list_arguments()}
    heads = [np.array([[2], [3], [5], [7]], "float32")]
    got, expected = (evaluate(symbol, arrays, heads) for symbol in (ours, native))
    for name in arrays:
        np.testing.assert_allclose(got.gradients[name], expected.gradients[name], rtol=3e-6, err_msg=name)


@pytest.mark.parametrize("slope", [0.0, 0.01, 1.0, 2.0, -0.5])
@pytest.mark.parametrize("act_type", ["leaky", "elu"])
def test_any_slope(act_type, slope, rng):
    ours, native = pair("LeakyReLU", act_type, slope=slope)
    compare(ours, native, filled(rng, native, (3, 7), "float32"), rng)


@pytest.mark.parametrize("size", [1, 5])
def test_learned_slopes_of_a_vector(size, rng):
    data, gamma = mx.sym.var("data"), mx.sym.var("gamma")
    native = mx.sym.LeakyReLU(data, gamma, act_type="prelu", name="o")
    swapped, _ = ops.swap_symbol(native)
    compare(swapped, native, {"data": random(rng, 5), "gamma": random(rng, size)}, rng)


def test_the_mean_slope_of_rrelu_when_not_training(rng):
    for bounds in ({}, {"lower_bound": 0.25, "upper_bound": 0.5}, {"lower_bound": 0.1, "upper_bound": 0.1}):
        native = mx.sym.LeakyReLU(mx.sym.var("data"), act_type="rrelu", **bounds)[0]
        swapped, report = ops.swap_symbol(native)
        assert [row.became for row in report.replaced] == ["ocl_activation"]
        arrays = {"data": random(rng, 4, 9)}
        got, expected = (evaluate(symbol, arrays, train=False).outputs[0] for symbol in (swapped, native))
        assert_close(got, expected)


@pytest.mark.parametrize("shape", [(0, 3), (2, 0, 4), (0, 3, 4, 5)], ids=str)
def test_nothing_gives_nothing(shape):
    with mx.util.np_shape(True):
        for _, act_type in FAMILIES:
            x = mx.nd.zeros(shape)
            gamma = [mx.nd.ones(shape[1])] if act_type == "prelu" else []
            for array in (x, *gamma):
                array.attach_grad()
                array.grad[:] = np.nan
            with mx.autograd.record():
                y = mx.nd.Custom(x, *gamma, op_type="ocl_activation", act_type=act_type)
            y.backward()
            assert y.shape == x.grad.shape == shape
            assert all((array.grad.asnumpy() == 0).all() for array in gamma)


def test_what_is_refused_is_named():
    x = mx.nd.ones((2, 3, 4))
    for inputs, keys, text in (
        ([x, mx.nd.ones(4)], {"act_type": "prelu"}, "gamma of shape (4,), expected shape (3,), (1,) or (2, 3, 4)"),
        ([x], {"act_type": "mish"}, "act_type 'mish', expected one of"),
        ([x], {"act_type": "rrelu", "lower_bound": 0.5, "upper_bound": 0.1}, "lower_bound 0.5, expected at most"),
        ([x], {"act_type": "relu", "alpha": 1}, "attribute 'alpha', expected one of"),
    ):
        with pytest.raises(core.ProblemError) as error:
            mx.nd.Custom(*inputs, op_type="ocl_activation", **keys)
        assert f"[ocl_activation] got {text}" in str(error.value)
