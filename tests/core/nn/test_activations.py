"""Functions of one element: values, gradients by every convention, and what sets the conventions apart."""

from __future__ import annotations

import ast
import math
import re
from pathlib import Path

import numpy as np
import pytest

from clgraft import core
from clgraft.core import PointwiseProblem, ProblemError
from clgraft.core.nn import activations, element_functions
from clgraft.core.nn.element_functions import ACTIVATIONS, FACTOR, LEFT, RESULT, SELECT, SELU_ALPHA, SELU_SCALE, find
from clgraft.core.nn.formulas import assigned, names_in
from tests.core.pointwise_checks import MACHINES, ROUNDING, planning_for, run

GIVEN = {
    "leaky_relu": {"slope": 0.3},
    "elu": {"alpha": 0.7},
    "hard_sigmoid": {"slope": 0.25, "offset": 0.4},
    "clip": {"low": -0.75, "high": 1.25},
    "threshold": {"threshold": 0.6},
    "leaky_relu_keep_zero": {"slope": -0.3},
    "elu_keep_zero": {"alpha": 0.7},
    "thresholded_relu": {"level": 0.4},
    "shrink": {"level": 0.4, "bias": 0.1},
    "stretched_elu": {"scale": 1.1, "least": 1.5, "stretch": 0.7},
    "scaled_elu": {"alpha": 1.5, "scale": 1.1},
    "celu": {"alpha": 0.7},
    "swish": {"beta": 1.5},
    "hard_sigmoid_1": {"slope": 0.25, "offset": 0.4},
    "scaled_tanh": {"alpha": 1.5, "beta": 0.7},
    "constant": {"level": 1.5},
    "scaled_square": {"scale": 0.5, "shift": 0.3},
    "linear": {"factor": -1.5, "shift": 0.25},
    "quotient": {"factor": 1.5},
    "at_least": {"level": 0.6},
    "at_most": {"level": -0.4},
    "smooth_l1": {"s2": 4.0},
    "power": {"power": 2.5, "scale": 0.5, "shift": 3.0},
    "scaled_exp": {"factor": 1.5, "scale": 0.8},
    "scaled_log": {"factor": 1 / math.log(2), "scale": 2.0, "shift": 0.5},
}
POSITIVE = ("sqrt", "rsqrt", "log", "log1p", "scaled_log", "power")
WITHIN_ONE = ("acos", "asin", "atanh", "tan")
KINKS = {"hard_swish": (-3, 3), "hard_sigmoid_6": (-3, 3), "hard_sigmoid": (-1.6, 2.4), "hard_sigmoid_1": (-1.6, 2.4)}
# adapters, which name functions and hold no formula
ADAPTERS = """mxnet_ops/operators/activation.py mxnet_ops/operators/eltwise.py caffe_layers/layers/activation.py
caffe_layers/layers/eltwise.py caffe_layers/layers/affine.py plugins/torch/lowering/elements.py
plugins/torch/lowering/layers.py plugins/torch/lowering/norms.py plugins/torch/lowering/resizing.py
plugins/torch/lowering/shapes.py plugins/torch/lowering/sums.py plugins/onnx/operators/norms.py
plugins/onnx/operators/windows.py"""
# a call of OpenCL's mathematics, a condition, or arithmetic with the usual names
FORMULA = re.compile(
    r"\b(exp|expm1|log|log1p|sqrt|pow|fabs|fmax|fmin|tanh|erf|isnan)\(| \? |\b(x|y|dy|x0|x1) [-+*/<>] "
)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def softplus(x: np.ndarray) -> np.ndarray:
    return np.logaddexp(0, x)


def elu(x: np.ndarray, alpha: float = 0.7) -> np.ndarray:
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))


def gelu_tanh(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


erf = np.vectorize(math.erf, otypes=[float])
erfc = np.vectorize(math.erfc, otypes=[float])

EXACT = {
    "identity": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "relu_keep_nan": lambda x: np.maximum(x, 0),
    "leaky_relu": lambda x: np.where(x > 0, x, 0.3 * x),
    "elu": elu,
    "leaky_relu_keep_zero": lambda x: np.where(x > 0, x, -0.3 * x),
    "elu_keep_zero": elu,
    "selu": lambda x: SELU_SCALE * elu(x, SELU_ALPHA),
    "gelu": lambda x: 0.5 * x * erfc(-x / math.sqrt(2)),
    "sigmoid": sigmoid,
    "hard_sigmoid": lambda x: np.clip(0.25 * x + 0.4, 0, 1),
    "log_sigmoid": lambda x: -softplus(-x),
    "silu": lambda x: x * sigmoid(x),
    "tanh": np.tanh,
    "softrelu": softplus,
    "bnll": softplus,
    "softsign": lambda x: x / (1 + np.abs(x)),
    "clip": lambda x: np.clip(x, -0.75, 1.25),
    "threshold": lambda x: (x > 0.6).astype(float),
    "abs": np.abs,
    "sign": np.sign,
    "negative": np.negative,
    "square": np.square,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "reciprocal": lambda x: 1 / x,
    "sin": np.sin,
    "cos": np.cos,
    "erf": erf,
    "expm1": np.expm1,
    "log1p": np.log1p,
    "linear": lambda x: 0.25 - 1.5 * x,
    "quotient": lambda x: 1.5 / x,
    "at_least": lambda x: np.maximum(x, 0.6),
    "at_most": lambda x: np.minimum(x, -0.4),
    "smooth_l1": lambda x: np.where(np.abs(x) < 0.25, 2 * x * x, np.abs(x) - 0.125),
    "power": lambda x: (3 + 0.5 * x) ** 2.5,
    "exp": np.exp,
    "log": np.log,
    "scaled_exp": lambda x: 1.5 * np.exp(0.8 * x),
    "scaled_log": lambda x: np.log2(2 * x + 0.5),
    "thresholded_relu": lambda x: np.where(x > 0.4, x, 0),
    "shrink": lambda x: np.sign(x) * np.where(np.abs(x) > 0.4, np.abs(x) - 0.1, 0),
    "stretched_elu": lambda x: np.where(x > 0, 1.1 * x, 1.5 * np.expm1(0.7 * np.minimum(x, 0))),
    "scaled_elu": lambda x: 1.1 * elu(x, 1.5),
    "celu": lambda x: np.where(x > 0, x, 0.7 * np.expm1(np.minimum(x, 0) / 0.7)),
    "gelu_erf": lambda x: 0.5 * x * (1 + erf(x / math.sqrt(2))),
    "gelu_tanh": gelu_tanh,
    "swish": lambda x: x * sigmoid(1.5 * x),
    "mish": lambda x: x * np.tanh(softplus(x)),
    "hard_swish": lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
    "hard_sigmoid_1": lambda x: np.clip(0.25 * x + 0.4, 0, 1),
    "hard_sigmoid_6": lambda x: np.clip(x / 6 + 0.5, 0, 1),
    "scaled_tanh": lambda x: 1.5 * np.tanh(0.7 * x),
    "ceil": np.ceil,
    "floor": np.floor,
    "round": np.rint,
    "constant": lambda x: np.full_like(x, 1.5),
    "scaled_square": lambda x: (0.5 * x + 0.3) ** 2,
    "cube": lambda x: x**3,
    "acos": np.arccos,
    "acosh": np.arccosh,
    "asin": np.arcsin,
    "asinh": np.arcsinh,
    "atan": np.arctan,
    "atanh": np.arctanh,
    "cosh": np.cosh,
    "sinh": np.sinh,
    "tan": np.tan,
    "is_nan": np.zeros_like,
    "is_infinite": np.zeros_like,
    "is_infinity": np.zeros_like,
    "is_negative_infinity": np.zeros_like,
    "never": np.zeros_like,
    "not": lambda x: (x == 0).astype(float),
}


def inputs(name: str, dtype: str, shape: tuple[int, ...] = (7, 149)) -> np.ndarray:
    """Random numbers of several sizes, away from the places where the function bends."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape) * rng.choice([0.1, 1, 8], shape)
    x = np.where(np.abs(x) < 0.01, 0.5, x)
    for bend in (*GIVEN.get(name, {}).values(), *KINKS.get(name, ())):
        for kink in (bend, -bend):
            x = np.where(np.abs(x - kink) < 0.01, kink + 0.02, x)
    if name in WITHIN_ONE:
        x = 0.9 * np.sin(x)
    return (np.abs(x) + (1.1 if name == "acosh" else 0.1) if name in (*POSITIVE, "acosh") else x).astype(dtype)


def both_ways(
    name: str, x: np.ndarray, machine: str = MACHINES[0], dy: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Run an activation and its gradient."""
    dtype = str(x.dtype)
    known = {"x": x}
    dy = np.ones_like(x) if dy is None else dy
    scalars = GIVEN.get(name)
    with planning_for(machine) as context:
        known["y"] = run(context, activations.forward(name, x.shape, dtype), {"x0": x}, scalars)["y0"]
        reads = {f"x{i}": known[tensor] for i, tensor in enumerate(ACTIVATIONS[name].reads, 1)}
        dx = run(context, activations.backward(name, x.shape, dtype), {"x0": dy, **reads}, scalars)["y0"]
    return known["y"], dx


def test_every_activation_has_a_reference() -> None:
    assert set(EXACT) == set(ACTIVATIONS)
    assert {name: set(values) for name, values in GIVEN.items()} == {
        name: set(a.scalars) for name, a in ACTIVATIONS.items() if a.scalars
    }


def check_values(name: str, x: np.ndarray, y: np.ndarray) -> None:
    """Hold values to a few roundings; functions of exp round its argument, log and linear next to their root."""
    dtype = str(x.dtype)
    exact = EXACT[name](x.astype(np.float64))
    arithmetic = ROUNDING["float64" if dtype == "float64" else "float32"]
    floor = 1 if name in ("log", "scaled_log", "linear", "scaled_square", "gelu_erf", "gelu_tanh", "shrink") else 0.01
    allowed = 2 * ROUNDING[dtype] * np.abs(exact) + (8 + np.abs(x)) * arithmetic * (np.abs(exact) + floor)
    allowed += 2.0**-24 if dtype == "float16" else 0
    good = (np.abs(y.astype(np.float64) - exact) <= allowed) | ((np.abs(exact) >= np.finfo(dtype).max) & np.isinf(y))
    assert good.all(), (dtype, x[~good][:5], y[~good][:5], exact[~good][:5])


@pytest.mark.parametrize(
    ("name", "machine", "dtype"),
    [(name, MACHINES[0], "float32") for name in ACTIVATIONS]
    + [(name, MACHINES[1], "float32") for name in ("gelu", "elu", "softrelu", "sign")]
    + [(name, MACHINES[0], "float16") for name in ("relu", "gelu", "softrelu")],
)
def test_values(name: str, machine: str, dtype: str) -> None:
    x = inputs(name, dtype)
    with planning_for(machine) as context:
        y = run(context, activations.forward(name, x.shape, dtype), {"x0": x}, GIVEN.get(name))["y0"]
    check_values(name, x, y)


WITH_SLOPE = [name for name in ACTIVATIONS if ACTIVATIONS[name].slope]


@pytest.mark.parametrize("name", [name for name in WITH_SLOPE if name != "selu"])
def test_gradients_are_differences(name: str) -> None:
    x = np.clip(inputs(name, "float64"), -6, 12)
    dy = np.random.default_rng(1).standard_normal(x.shape)
    y, dx = both_ways(name, x, dy=dy)
    check_values(name, x, y)
    h = 1e-5
    slope = (EXACT[name](x + h) - EXACT[name](x - h)) / (2 * h)
    np.testing.assert_allclose(dx, dy * slope, rtol=1e-6, atol=1e-8)


def test_the_gradient_of_selu_is_mxnets() -> None:
    x = inputs("selu", "float64")
    y, dx = both_ways("selu", x)
    np.testing.assert_allclose(dx, SELU_SCALE * np.where(x > 0, 1, SELU_ALPHA + y), rtol=1e-14)


@pytest.mark.parametrize("name", WITH_SLOPE)
def test_single_precision_gradients(name: str) -> None:
    x = inputs(name, "float64").astype("float32")
    x = np.clip(x, -3, 3) if name == "gelu_tanh" else x  # 1 - t^2 has lost all digits where its factor x^3 is large
    wide = both_ways(name, x.astype("float64"))[1]
    narrow = both_ways(name, x)[1]
    scale = np.maximum(np.abs(wide), 1 if name == "selu" else 0.05)  # selu's is a difference of numbers about 1.7
    finite = np.abs(wide) < np.finfo("float32").max
    # OpenCL allows tanh an error of 5 units in the last place, which 1 - y^2 doubles, and the scale is at least 0.05
    most = {"tanh": 2 * 5 / 0.05, "gelu_tanh": 1000}.get(name, 64)
    assert (np.abs(narrow - wide) / scale)[finite].max() < most * ROUNDING["float32"]


def test_conventions_at_zero_and_at_bounds() -> None:
    zero = np.zeros(20, "float32")
    expected = {
        "relu": 0,
        "relu_keep_nan": 0,
        "leaky_relu": 0.3,
        "elu": 0.7,
        "abs": 0,
        "softsign": 1,
        "tanh": 1,
        "sigmoid": 0.25,
    }
    for name, slope in expected.items():
        np.testing.assert_allclose(both_ways(name, zero)[1], slope, rtol=1e-6)
    for bound in (-0.75, 1.25):
        np.testing.assert_array_equal(both_ways("clip", zero + np.float32(bound))[1], 1)


@pytest.mark.parametrize("machine", MACHINES[:2])
def test_nan_and_infinity(machine: str) -> None:
    x = np.array([np.nan, np.inf, -np.inf, 0, -0.0, 1e30, -1e30, 100, -100] * 3, "float32")
    special = {
        "relu": [0, np.inf, 0],
        "relu_keep_nan": [np.nan, np.inf, 0],
        "leaky_relu": [np.nan, np.inf, -np.inf],
        "sigmoid": [np.nan, 1, 0],
        "tanh": [np.nan, 1, -1],
        "softrelu": [np.nan, np.inf, 0],
        "elu": [np.nan, np.inf, -0.7],
        "clip": [np.nan, 1.25, -0.75],
        "abs": [np.nan, np.inf, np.inf],
    }
    for name, expected in special.items():
        y, _ = both_ways(name, x, machine)
        np.testing.assert_allclose(y[:3], np.array(expected, "float32"), rtol=1e-6)
        assert not np.isnan(y[3:9]).any()


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("shape", "axis"), [((2, 3, 4, 5), 1), ((3, 33), 1), ((4, 5, 40), -1), ((2, 7, 49), 1)])
def test_learned_slopes(shape: tuple[int, ...], axis: int, shared: bool) -> None:
    forward = activations.prelu_forward(shape, axis, shared, "float64")
    backward = activations.prelu_backward(shape, axis, shared, "float64")
    rng = np.random.default_rng(0)
    x, dy, slope = rng.standard_normal(shape), rng.standard_normal(shape), rng.standard_normal(forward.inputs[1])
    x.reshape(-1)[:3] = 0
    y = run(core.context(), forward, {"x0": x, "x1": slope})["y0"]
    np.testing.assert_array_equal(y, np.where(x > 0, x, slope * x))
    results = run(core.context(), backward, {"x0": dy, "x1": x, "x2": slope})
    np.testing.assert_array_equal(results["y0"], np.where(x > 0, dy, slope * dy))
    each = np.where(x > 0, 0, dy * x)
    axes = tuple(a for a in range(len(shape)) if shared or a != axis % len(shape))
    np.testing.assert_allclose(
        results["y1"], each.sum(axes, keepdims=True).reshape(slope.shape), rtol=1e-12, atol=1e-12
    )


def test_unknown_names_are_named() -> None:
    with pytest.raises(ProblemError, match=r"\[activation\] got 'swishy', expected one of \["):
        activations.forward("swishy", (3,))
    with pytest.raises(ProblemError, match=r"\[activation\] got axis 2"):
        activations.prelu_forward((3, 4), 2)


def gradient(name: str, way: str, x: np.ndarray, dy: np.ndarray) -> np.ndarray:
    """Return a gradient by the reference of the core, in float64."""
    function = find(name).given(**GIVEN.get(name, {}))
    shapes, scalars = (x.shape,), tuple(function.scalars)
    value = PointwiseProblem(shapes, f"real x = x0; {assigned('y0', function.value)}", (), scalars, dtype="float64")
    y = value.reference({"x0": x}, function.scalars)["y0"]
    text = f"real x = x0; real y = x1; real dy = x2; {assigned('y0', function.gradient(way))}"
    problem = PointwiseProblem(shapes * 3, text, (), scalars, dtype="float64")
    return problem.reference({"x0": x, "x1": y, "x2": dy}, function.scalars)["y0"]


STATED = [(name, way) for name, function in ACTIVATIONS.items() for way in function.ways]


@pytest.mark.parametrize(("name", "way"), STATED)
def test_every_way_is_the_derivative(name: str, way: str) -> None:
    x = np.clip(inputs(name, "float64"), -6, 12)
    dy, h = np.random.default_rng(1).standard_normal(x.shape), 1e-5
    slope = (EXACT[name](x + h) - EXACT[name](x - h)) / (2 * h)
    np.testing.assert_allclose(gradient(name, way, x, dy), dy * slope, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", [name for name in ACTIVATIONS if name not in WITH_SLOPE and "is_" not in name])
def test_functions_without_a_slope_have_the_derivative_of_their_value(name: str) -> None:
    x, h, scalars = np.clip(inputs(name, "float64"), -6, 12), 1e-5, GIVEN.get(name, {})
    if name in ("ceil", "floor", "round"):
        x = 0.4 * np.sin(x) + 0.45  # away from steps
        x = np.where(np.abs(x - 0.5) < 0.01, 0.52, x)
    problem = activations.forward(name, x.shape, "float64")
    if name in ("never", "not"):
        return
    dx, known = np.zeros_like(x), {"dy0": np.ones_like(x), "x0": x}
    for found in problem.gradients():
        given = {own: known[symbol] for own, symbol in found.arguments.items() if symbol in known}
        dx = next(iter(found.problem.reference(given, scalars).values()))
    slope = (EXACT[name](x + h) - EXACT[name](x - h)) / (2 * h)
    np.testing.assert_allclose(dx, slope, rtol=1e-6, atol=1e-8)


NAN, INF = math.nan, math.inf
# function, way, x -> dx for a dy of 2
AT_KINKS = {
    ("relu", FACTOR): {0.0: 0.0, NAN: 0.0},
    ("relu_keep_nan", FACTOR): {0.0: 0.0, NAN: NAN},
    ("leaky_relu", FACTOR): {0.0: 0.6, NAN: 2.0},
    ("leaky_relu", LEFT): {0.0: 0.6, NAN: 0.0},
    ("leaky_relu", SELECT): {0.0: 0.6, NAN: 0.6},
    ("thresholded_relu", FACTOR): {0.4: 0.0, NAN: 0.0},
    ("thresholded_relu", SELECT): {0.4: 0.0, NAN: 2.0},
    ("clip", FACTOR): {-0.75: 2.0, 1.25: 2.0, NAN: 2.0},
    ("clip", LEFT): {-0.75: 2.0, 1.25: 2.0, NAN: 0.0},
    ("clip", SELECT): {-0.75: 0.0, 1.25: 0.0, NAN: 2.0},
    ("at_least", FACTOR): {0.6: 2.0, NAN: 0.0},
    ("at_most", FACTOR): {-0.4: 2.0, NAN: 0.0},
    ("elu", FACTOR): {0.0: 1.4, NAN: 2.0},
    ("elu", LEFT): {0.0: 1.4, NAN: 0.0},
    ("elu", SELECT): {0.0: 1.4, NAN: NAN},
    ("elu", RESULT): {0.0: 1.4, NAN: NAN},
    ("hard_sigmoid", FACTOR): {-1.6: 0.0, 2.4: 0.0, NAN: 0.0},
    ("hard_sigmoid_6", SELECT): {-3.0: 0.0, 3.0: 0.0, NAN: 0.0},
    ("hard_swish", SELECT): {-3.0: -1.0, 3.0: 3.0, NAN: 2.0},
    ("abs", FACTOR): {0.0: 0.0, NAN: 0.0},
    ("smooth_l1", FACTOR): {0.25: 2.0, NAN: NAN},
    ("power", FACTOR): {-6.0: 0.0},
}


@pytest.mark.parametrize(("name", "way"), AT_KINKS)
def test_conventions_at_kinks_and_at_nan(name: str, way: str) -> None:
    for x, expected in AT_KINKS[name, way].items():
        dx = gradient(name, way, np.array([x]), np.array([2.0]))
        np.testing.assert_allclose(dx, [expected], rtol=1e-12, err_msg=str(x))


def test_an_infinite_gradient_where_the_slope_is_0() -> None:
    x, dy = np.array([-1.0]), np.array([INF])
    assert np.isnan(gradient("clip", FACTOR, x, dy)) and np.isnan(gradient("clip", LEFT, x, dy))
    assert gradient("clip", SELECT, x, dy) == 0 and gradient("thresholded_relu", SELECT, x, dy) == 0


def test_values_that_frameworks_see_differently() -> None:
    def value(name: str, x: float) -> float:
        return float(
            activations.forward(name, (1,), "float64").reference({"x0": np.array([x])}, GIVEN.get(name))["y0"][0]
        )

    assert value("relu", NAN) == 0 and math.isnan(value("relu_keep_nan", NAN))
    assert value("thresholded_relu", NAN) == 0 and math.isnan(value("leaky_relu", NAN))
    assert math.isnan(value("hard_sigmoid", NAN)) and math.isnan(value("hard_sigmoid_6", NAN))
    assert value("hard_sigmoid_1", NAN) == 1
    assert value("gelu", -10) < 0 == value("gelu_erf", -10)
    assert value("sign", NAN) == value("threshold", NAN) == 0
    assert [value("round", x) for x in (0.5, 1.5, 2.5)] == [0, 2, 2]
    assert [value(name, INF) for name in ("is_infinite", "is_infinity", "is_negative_infinity", "never")] == [
        1,
        1,
        0,
        0,
    ]
    assert np.signbit(value("elu_keep_zero", -0.0)) and not np.signbit(value("leaky_relu_keep_zero", 0.0))
    assert value("is_nan", NAN) == 1 and value("never", NAN) == 0


def test_y_stands_for_x_where_the_table_says_so() -> None:
    x = np.linspace(-2, 2, 41)
    dy = np.ones_like(x)
    for name, function in ACTIVATIONS.items():
        for way in function.y_for_x:
            assert not function.keeps_x(way)
            y = activations.forward(name, x.shape, "float64").reference({"x0": x}, GIVEN.get(name))["y0"]
            text = f"real x = x0; real y = x0; real dy = x1; {assigned('y0', function.gradient(way))}"
            problem = PointwiseProblem((x.shape,) * 2, text, (), tuple(function.scalars), dtype="float64")
            got = problem.reference({"x0": y, "x1": dy}, GIVEN.get(name))["y0"]
            np.testing.assert_allclose(got, gradient(name, way, x, dy), rtol=1e-12)
    assert find("clip").keeps_x(LEFT) and not find("sigmoid").keeps_x(LEFT)


def test_gradients_from_results_read_no_input() -> None:
    stated = [function for function in ACTIVATIONS.values() if RESULT in function.ways]
    assert stated and all("x" not in names_in(function.gradient(RESULT)) for function in stated)
    with pytest.raises(ProblemError, match=r"\[activation\] got no gradient of 'x \* tanh"):
        find("mish").gradient()
    with pytest.raises(ProblemError, match=r"expected one for 'result'"):
        find("silu").gradient(RESULT)


@pytest.mark.parametrize(
    ("power", "scale", "shift"), [(1, 2, 3), (2, 0.5, -1), (3, 0.5, 5), (0, 1, 0), (2.5, 0, 2), (-1, 2, 9)]
)
def test_powers_of_a_linear_function(power: float, scale: float, shift: float) -> None:
    function, x = element_functions.scaled_power(power, scale, shift), np.linspace(-2, 2, 9)
    text = f"real x = x0; {assigned('y0', function.value)} {assigned('y1', function.gradient(LEFT)).replace('dy', '3')}"
    problem = PointwiseProblem((x.shape,), text, (), tuple(function.scalars), dtype="float64")
    found = problem.reference({"x0": x}, function.scalars)
    base = shift + scale * x
    np.testing.assert_allclose(found["y0"], np.float64(base) ** power, rtol=1e-12)
    slope = 0 * x if power * scale == 0 else power * scale * base ** (power - 1.0)
    np.testing.assert_allclose(found["y1"], 3 * slope, rtol=1e-12)


def test_powers_as_products_and_roots() -> None:
    x = np.linspace(0.5, 2, 7)
    for exponent in (1, 2, 3, 0.5, -1, -0.5):
        function = element_functions.exact_power(exponent)
        assert function is not None
        np.testing.assert_allclose(EXACT[next(k for k, f in ACTIVATIONS.items() if f is function)](x), x**exponent)
    assert element_functions.exact_power(1.7) is None and element_functions.exact_power(-0.5, rsqrt=False) is None


def test_scalars_are_the_functions_own() -> None:
    assert find("elu").given(alpha=2).scalars == {"alpha": 2}
    with pytest.raises(ProblemError, match=r"\[activation\] got scalars \['slope'\], expected some of \['alpha'\]"):
        find("elu").given(slope=2)


@pytest.mark.parametrize("name", ADAPTERS.split())
def test_adapters_hold_no_formula(name: str) -> None:
    tree = ast.parse((Path(core.__file__).parent.parent / name).read_text(encoding="utf-8"))
    told = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in told:
            assert not FORMULA.search(node.value), f"{name}:{node.lineno}: {node.value}"


def test_exponentials_are_good_to_five_ulp_near_zero_and_at_the_ends():
    random = np.random.default_rng(0)
    x = (random.uniform(1, 2, 1 << 16) * 2.0 ** random.uniform(-30, 7, 1 << 16)).astype(np.float32)
    x[::2] *= -1
    x[:12] = 0, -0.0, np.inf, -np.inf, np.nan, 88.7228, 88.8, -17.5, -31, 3e38, -3e38, 0.34657
    y0, y1 = np.full((2, x.size), np.nan, np.float32)
    core.context().plan(core.parse(f"pointwise x0[{x.size}] : y0 = tanh(x0); y1 = expm1(x0)")).run(x0=x, y0=y0, y1=y1)
    for found, function in ((y0, np.tanh), (y1, np.expm1)):
        with np.errstate(over="ignore"):
            expected = function(x.astype(np.float64))
            rounded = expected.astype(np.float32)
        finite = np.isfinite(rounded)
        assert np.array_equal(found[~finite], rounded[~finite], equal_nan=True)
        assert (np.abs(found[finite] - expected[finite]) <= 5 * np.spacing(np.abs(rounded[finite]))).all()
    assert np.signbit(y0[1])


def test_logarithms_are_good_to_five_ulp_from_minus_one_on():
    random = np.random.default_rng(0)
    x = (random.uniform(1, 2, 1 << 16) * 2.0 ** random.uniform(-30, 20, 1 << 16)).astype(np.float32)
    x[::2] = random.uniform(-1, 1, 1 << 15)
    x[1::8] *= -(2.0**-21)
    x[:10] = 0, -0.0, np.inf, -np.inf, np.nan, -1, -2, 1, -0.5, 3e38
    y0 = np.full(x.size, np.nan, np.float32)
    core.context().plan(core.parse(f"pointwise x0[{x.size}] : y0 = log1p(x0)")).run(x0=x, y0=y0)
    with np.errstate(divide="ignore", invalid="ignore"):
        expected = np.log1p(x.astype(np.float64))
    rounded = expected.astype(np.float32)
    finite = np.isfinite(rounded)
    assert np.array_equal(y0[~finite], rounded[~finite], equal_nan=True)
    assert (np.abs(y0[finite] - expected[finite]) <= 5 * np.spacing(np.abs(rounded[finite]))).all()
    assert np.signbit(y0[1])
