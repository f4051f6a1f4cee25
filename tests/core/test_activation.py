"""Activations: values against float64, gradients against differences, and the conventions at special points."""

from __future__ import annotations

import math

import numpy as np
import pytest

from clgraft import core
from clgraft.core import ProblemError
from clgraft.core.operators.pointwise.formulas import activation
from clgraft.core.operators.pointwise.formulas.activation import ACTIVATIONS
from tests.core.pointwise_checks import MACHINES, ROUNDING, planning_for, run

GIVEN = {
    "leaky_relu": {"slope": 0.3},
    "elu": {"alpha": 0.7},
    "hard_sigmoid": {"slope": 0.25, "offset": 0.4},
    "clip": {"low": -0.75, "high": 1.25},
    "threshold": {"threshold": 0.6},
    "linear": {"factor": -1.5, "shift": 0.25},
    "quotient": {"factor": 1.5},
    "at_least": {"level": 0.6},
    "at_most": {"level": -0.4},
    "smooth_l1": {"s2": 4.0},
    "power": {"power": 2.5, "scale": 0.5, "shift": 3.0},
    "exp": {"factor": 1.5, "scale": 0.8},
    "log": {"factor": 1 / math.log(2), "scale": 2.0, "shift": 0.5},
}
POSITIVE = ("sqrt", "rsqrt", "log", "log1p", "power")


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def softplus(x: np.ndarray) -> np.ndarray:
    return np.logaddexp(0, x)


def elu(x: np.ndarray, alpha: float = 0.7) -> np.ndarray:
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))


erf = np.vectorize(math.erf, otypes=[float])
erfc = np.vectorize(math.erfc, otypes=[float])

EXACT = {
    "identity": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "relu_keep_nan": lambda x: np.maximum(x, 0),
    "leaky_relu": lambda x: np.where(x > 0, x, 0.3 * x),
    "elu": elu,
    "selu": lambda x: activation.SELU_SCALE * elu(x, activation.SELU_ALPHA),
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
    "exp": lambda x: 1.5 * np.exp(0.8 * x),
    "log": lambda x: np.log2(2 * x + 0.5),
}


def inputs(name: str, dtype: str, shape: tuple[int, ...] = (7, 149)) -> np.ndarray:
    """Random numbers of several sizes, away from the places where the function bends."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape) * rng.choice([0.1, 1, 8], shape)
    x = np.where(np.abs(x) < 0.01, 0.5, x)
    for bend in GIVEN.get(name, {}).values():
        x = np.where(np.abs(x - bend) < 0.01, bend + 0.02, x)
    return (np.abs(x) + 0.1 if name in POSITIVE else x).astype(dtype)


def both_ways(
    name: str, x: np.ndarray, machine: str = MACHINES[0], dy: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Run an activation and its gradient."""
    dtype = str(x.dtype)
    known = {"x": x}
    dy = np.ones_like(x) if dy is None else dy
    scalars = GIVEN.get(name)
    with planning_for(machine) as context:
        known["y"] = run(context, activation.forward(name, x.shape, dtype), {"x0": x}, scalars)["y0"]
        reads = {f"x{i}": known[tensor] for i, tensor in enumerate(ACTIVATIONS[name].reads, 1)}
        dx = run(context, activation.backward(name, x.shape, dtype), {"x0": dy, **reads}, scalars)["y0"]
    return known["y"], dx


def test_every_activation_has_a_reference() -> None:
    assert set(EXACT) == set(ACTIVATIONS)
    assert {name: set(values) for name, values in GIVEN.items()} == {
        name: {s for s, _ in a.scalars} for name, a in ACTIVATIONS.items() if a.scalars
    }


def check_values(name: str, x: np.ndarray, y: np.ndarray) -> None:
    """Hold values to a few roundings; functions of exp round its argument, log and linear next to their root."""
    dtype = str(x.dtype)
    exact = EXACT[name](x.astype(np.float64))
    arithmetic = ROUNDING["float64" if dtype == "float64" else "float32"]
    floor = 1 if name in ("log", "linear") else 0.01
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
        y = run(context, activation.forward(name, x.shape, dtype), {"x0": x}, GIVEN.get(name))["y0"]
    check_values(name, x, y)


@pytest.mark.parametrize("name", [name for name in ACTIVATIONS if name != "selu"])
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
    np.testing.assert_allclose(dx, activation.SELU_SCALE * np.where(x > 0, 1, activation.SELU_ALPHA + y), rtol=1e-14)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_single_precision_gradients(name: str) -> None:
    x = inputs(name, "float64").astype("float32")
    wide = both_ways(name, x.astype("float64"))[1]
    narrow = both_ways(name, x)[1]
    scale = np.maximum(np.abs(wide), 1 if name == "selu" else 0.05)  # selu's is a difference of numbers about 1.7
    finite = np.abs(wide) < np.finfo("float32").max
    # OpenCL allows tanh an error of 5 units in the last place, which 1 - y^2 doubles, and the scale is at least 0.05
    most = 2 * 5 / 0.05 if name == "tanh" else 64
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
    forward = activation.prelu_forward(shape, axis, shared, "float64")
    backward = activation.prelu_backward(shape, axis, shared, "float64")
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
        activation.forward("swishy", (3,))
    with pytest.raises(ProblemError, match=r"\[activation\] got axis 2"):
        activation.prelu_forward((3, 4), 2)
