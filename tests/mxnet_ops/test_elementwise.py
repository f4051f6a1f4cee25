"""Activations, arithmetic and the user's own expressions compared with MXNet's own operators."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest

from tests.mxnet_ops.operator_checks import assert_close, compare, evaluate, numeric_gradients, random

SHAPES = [(2, 3, 5, 7), (1,), (1031,), (3, 1, 2, 1, 2)]
NATIVE = {
    "relu": lambda x: mx.sym.Activation(x, act_type="relu"),
    "sigmoid": lambda x: mx.sym.Activation(x, act_type="sigmoid"),
    "tanh": lambda x: mx.sym.Activation(x, act_type="tanh"),
    "softrelu": lambda x: mx.sym.Activation(x, act_type="softrelu"),
    "softsign": lambda x: mx.sym.Activation(x, act_type="softsign"),
    "leaky": lambda x: mx.sym.LeakyReLU(x, act_type="leaky"),
    "elu": lambda x: mx.sym.LeakyReLU(x, act_type="elu"),
    "selu": lambda x: mx.sym.LeakyReLU(x, act_type="selu"),
    "gelu": lambda x: mx.sym.LeakyReLU(x, act_type="gelu"),
    "relu_keep_nan": mx.sym.relu,
    "clip": lambda x: mx.sym.clip(x, 0, 6),
    "hard_sigmoid": mx.sym.hard_sigmoid,
    "silu": lambda x: x * mx.sym.sigmoid(x),
    "exp": mx.sym.exp,
    **{name: getattr(mx.sym, name) for name in ["abs", "sign", "negative", "square", "sin", "cos", "erf", "expm1"]},
}
POSITIVE = {name: getattr(mx.sym, name) for name in ["sqrt", "rsqrt", "reciprocal", "log", "log1p"]}
SINGLE = ("leaky", "selu", "gelu", "hard_sigmoid", "erf")  # MXNet computes these in single precision for every dtype
BINARY = ["add", "sub", "mul", "div", "maximum", "minimum", "power", "hypot"]
OPERATION = {"sub": "subtract", "mul": "multiply", "div": "divide"}


def activation(**keys):
    return mx.sym.Custom(mx.sym.var("data"), op_type="ocl_activation", name="a", **keys)


@pytest.mark.parametrize("name", NATIVE)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_activation_is_mxnets(name, dtype, rng):
    shape = SHAPES[0] if dtype == "float64" else (3, 337)
    arrays = {"data": 3 * random(rng, *shape, dtype=dtype)}
    arrays["data"].flat[0] = 0
    tolerance = "float32" if name in SINGLE else dtype
    compare(activation(act_type=name), NATIVE[name](mx.sym.var("data")), arrays, rng, dtype=tolerance)
    if dtype == "float64" and name not in ("sign", "selu"):  # MXNet's gradient of selu is not its derivative
        arrays["data"].flat[0] = 1
        numeric_gradients(activation(act_type=name), arrays, rng)


@pytest.mark.parametrize("name", POSITIVE)
def test_functions_of_positive_numbers(name, rng):
    arrays = {"data": 0.1 + np.abs(random(rng, 4, 37, dtype="float64"))}
    compare(activation(act_type=name), POSITIVE[name](mx.sym.var("data")), arrays, rng, dtype="float64")


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shapes(shape, rng):
    arrays = {"data": random(rng, *shape)}
    compare(activation(act_type="tanh"), mx.sym.tanh(mx.sym.var("data")), arrays, rng)


@pytest.mark.parametrize("keys", [{"act_type": "leaky", "slope": 0.1}, {"act_type": "elu", "slope": 1.5}], ids=str)
def test_slopes(keys, rng):
    arrays = {"data": random(rng, 3, 50)}
    compare(activation(**keys), mx.sym.LeakyReLU(mx.sym.var("data"), **keys), arrays, rng)


@pytest.mark.parametrize("shared", [False, True])
def test_learned_slopes(shared, rng):
    arrays = {"data": random(rng, 4, 3, 5, 7), "gamma": random(rng, 1 if shared else 3)}
    data, gamma = mx.sym.var("data"), mx.sym.var("gamma")
    ours = mx.sym.Custom(data, gamma, op_type="ocl_activation", act_type="prelu")
    compare(ours, mx.sym.LeakyReLU(data, gamma, act_type="prelu"), arrays, rng)
    inferred = mx.sym.Custom(data, op_type="ocl_activation", act_type="prelu", name="a").infer_shape(data=(4, 3, 5, 7))
    assert inferred[0] == [(4, 3, 5, 7), (3,)]


KINKS = [np.nan, np.inf, -np.inf, -0.0, 0.0, 1.0, -1.0, 2.5, -2.5, 6.0, 88.0, -88.0, 200.0, -200.0]
FINITE = (
    "elu",
    "silu",
    "gelu",
    "exp",
    "expm1",
    "sin",
    "cos",
    "erf",
    "square",
)  # where NaN and infinity are not compared


@pytest.mark.parametrize("name", NATIVE)
def test_kinks_nan_and_infinity_as_mxnet_has_them(name):
    values = np.array(KINKS[3:-4] if name in FINITE else KINKS, "float32")
    heads = [np.arange(1, len(values) + 1, dtype="float32")]
    got = evaluate(activation(act_type=name), {"data": values}, heads)
    expected = evaluate(NATIVE[name](mx.sym.var("data")), {"data": values}, heads)
    tolerance = 3e-6 if name == "softrelu" else 1e-6  # MXNet's own is off by 1.5e-6
    np.testing.assert_allclose(got.outputs[0], expected.outputs[0], rtol=tolerance, atol=1e-37, err_msg=name)
    # where a function saturates its gradient is a difference from 1, here times up to 14
    np.testing.assert_allclose(got.gradients["data"], expected.gradients["data"], rtol=1e-5, atol=2e-6, err_msg=name)


@pytest.mark.parametrize("name", ["maximum", "minimum"])
def test_nan_and_ties_of_two_as_mxnet_has_them(name):
    arrays = {"a": np.array([1, 2, np.nan, 2, 3], "float32"), "b": np.array([1, np.nan, 1, 1, 4], "float32")}
    a, b = mx.sym.var("a"), mx.sym.var("b")
    heads = [np.arange(1, 6, dtype="float32")]
    got = evaluate(mx.sym.Custom(a, b, op_type="ocl_eltwise", operation=name), arrays, heads)
    expected = evaluate(getattr(mx.sym, f"broadcast_{name}")(a, b), arrays, heads)
    np.testing.assert_array_equal(got.outputs[0], expected.outputs[0])
    for key in arrays:
        np.testing.assert_array_equal(got.gradients[key], expected.gradients[key])


def test_learned_slopes_at_kinks():
    values = np.array([KINKS], "float32").T
    arrays = {"data": values, "gamma": np.array([0.3], "float32")}
    data, gamma = mx.sym.var("data"), mx.sym.var("gamma")
    heads = [np.arange(1, len(values) + 1, dtype="float32")[:, None]]
    got = evaluate(mx.sym.Custom(data, gamma, op_type="ocl_activation", act_type="prelu"), arrays, heads)
    expected = evaluate(mx.sym.LeakyReLU(data, gamma, act_type="prelu"), arrays, heads)
    np.testing.assert_allclose(got.outputs[0], expected.outputs[0], rtol=1e-6)
    np.testing.assert_allclose(got.gradients["data"], expected.gradients["data"], rtol=1e-6)


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize(
    "shapes", [((2, 3, 4), (2, 3, 4)), ((2, 3, 4), (1, 3, 1)), ((1, 3, 1), (5, 1, 4)), ((7,), (1,))], ids=str
)
def test_arithmetic_with_broadcasting_is_mxnets(name, shapes, rng):
    a, b = (np.abs(random(rng, *shape, dtype="float64")) + 0.1 for shape in shapes)
    if name in ("maximum", "minimum"):
        a, b = np.round(a * 2), np.round(b * 2)  # ties
    native = getattr(mx.sym, f"broadcast_{name}")(mx.sym.var("a"), mx.sym.var("b"))
    ours = mx.sym.Custom(
        mx.sym.var("a"), mx.sym.var("b"), op_type="ocl_eltwise", operation=OPERATION.get(name, name), name="e"
    )
    compare(ours, native, {"a": a, "b": b}, rng, dtype="float64")


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_sums_of_many(count, rng):
    names = [f"x{i}" for i in range(count)]
    symbols = [mx.sym.var(name) for name in names]
    arrays = {name: random(rng, 3, 41) for name in names}
    keys = {"op_type": "ocl_eltwise", "num_args": count, "name": "e", "broadcast": False}
    compare(mx.sym.Custom(*symbols, **keys), mx.sym.add_n(*symbols), arrays, rng)
    factors = tuple(float(i - 1.5) for i in range(count))
    weighted = sum((s * f for s, f in zip(symbols[1:], factors[1:])), symbols[0] * factors[0])
    compare(mx.sym.Custom(*symbols, coefficients=factors, **keys), weighted, arrays, rng)


@pytest.mark.parametrize("operation", ["multiply", "maximum"])
def test_products_and_maxima_of_three(operation, rng):
    a, b, c = (mx.sym.var(name) for name in "abc")
    native = a * b * c if operation == "multiply" else mx.sym.maximum(mx.sym.maximum(a, b), c)
    ours = mx.sym.Custom(a, b, c, op_type="ocl_eltwise", operation=operation, num_args=3)
    compare(ours, native, {name: random(rng, 4, 5, 6) for name in "abc"}, rng)


def test_one_array_as_both_inputs(rng):
    x = mx.sym.var("x")
    ours = mx.sym.Custom(x, x, op_type="ocl_eltwise", operation="multiply")
    compare(ours, x * x, {"x": random(rng, 4, 5)}, rng)


def test_shapes_of_equal_inputs_are_inferred_from_either():
    a, b = mx.sym.var("a"), mx.sym.var("b")
    ours = mx.sym.Custom(a, b, op_type="ocl_eltwise", broadcast=False)
    assert ours.infer_shape(b=(2, 3))[0] == [(2, 3), (2, 3)]


def test_own_expression_with_scalars_and_broadcast_gradients(rng):
    keys = {
        "expression": "y0 = a * x0 * x1 + b;",
        "gradient": "dx0 = a * dy0 * x1; dx1 = a * dy0 * x0;",
        "scalars": {"a": 1.5, "b": -2.0},
        "num_args": 2,
    }
    p, q = mx.sym.var("p"), mx.sym.var("q")
    ours = mx.sym.Custom(p, q, op_type="ocl_pointwise", **keys)
    native = mx.sym.broadcast_mul(p, q) * 1.5 - 2
    compare(ours, native, {"p": random(rng, 3, 4, 5), "q": random(rng, 1, 4, 1)}, rng)


def test_own_expression_with_several_outputs_that_its_gradient_reads(rng):
    keys = {"expression": "y0 = exp(x0); y1 = x0 * x0;", "gradient": "dx0 = dy0 * y0 + 2 * dy1 * x0;"}
    x = mx.sym.var("x")
    ours = mx.sym.Custom(x, op_type="ocl_pointwise", **keys)
    native = mx.sym.Group([mx.sym.exp(x), x * x])
    compare(ours, native, {"x": random(rng, 6, 7, dtype="float64")}, rng, dtype="float64")
    numeric_gradients(ours, {"x": random(rng, 3, 2, dtype="float64")}, rng)


@pytest.mark.parametrize("keepdims", [True, False])
@pytest.mark.parametrize("axis", [(1,), (0, -1), ()], ids=str)
def test_own_expression_reduced(axis, keepdims, rng):
    keys = {"expression": "y0 = x0 * x0;", "gradient": "dx0 = 2 * dy0 * x0;", "reduction": "sum", "keepdims": keepdims}
    x = mx.sym.var("x")
    ours = mx.sym.Custom(x, op_type="ocl_pointwise", axis=axis, **keys)
    native = mx.sym.sum(x * x, axis=axis, keepdims=keepdims) if axis else mx.sym.sum(x * x, keepdims=keepdims)
    compare(ours, native, {"x": random(rng, 3, 4, 5, dtype="float64")}, rng, dtype="float64")


def test_expression_without_gradient_gives_zeros(rng):
    ours = mx.sym.Custom(mx.sym.var("x"), op_type="ocl_pointwise", expression="y0 = floor(x0);", gradient="none")
    got = evaluate(ours, {"x": random(rng, 9)}, [random(rng, 9)])
    assert (got.gradients["x"] == 0).all()


def test_half_precision(rng):
    x = random(rng, 5, 33, dtype="float16")
    got = evaluate(activation(act_type="tanh"), {"data": x}, [np.ones_like(x)])
    assert got.outputs[0].dtype == np.float16
    assert_close(got.outputs[0], np.tanh(x.astype("float64")), "float16")
    assert_close(got.gradients["data"], 1 - np.tanh(x.astype("float64")) ** 2, "float16")


def test_in_place(rng):
    x = mx.nd.array(random(rng, 5, 33))
    expected = np.tanh(x.asnumpy())
    mx.nd.Custom(x, op_type="ocl_activation", act_type="tanh", out=x)
    assert_close(x.asnumpy(), expected)
