"""Derivatives of programs: every function and sign by differences, kinks by rule, and the kernels against both."""

from __future__ import annotations

import numpy as np
import pytest

from clgraft import core
from clgraft.core import PointwiseProblem, ProblemError
from clgraft.core.nn import activations
from clgraft.core.nn.element_functions import ACTIVATIONS
from clgraft.core.nn.elementwise import BINARY
from clgraft.core.nn.formulas import assigned
from clgraft.core.operators.pointwise.derivative import FACTORS, gradient_expression
from clgraft.core.operators.pointwise.expression import FUNCTIONS
from clgraft.core.operators.pointwise.reference import FUNCTIONS as REFERENCE
from tests.core.pointwise_checks import run

UNKNOWN = {"lgamma", "tgamma"}
ABOVE_ONE = {"acosh"}
SIGNED = {"asinh", "atan", "cbrt", "sinh", "fabs", "copysign", "maxmag", "minmag", "fdim", "fmod", "remainder", "mix"}


def differences(text: str, values: list[np.ndarray], scalars: dict[str, float] | None = None) -> None:
    """Hold each input's gradient by the reference to central differences of the reference."""
    problem = PointwiseProblem(tuple(v.shape for v in values), text, (), tuple(scalars or {}), dtype="float64")
    given = {f"x{i}": value for i, value in enumerate(values)}
    outputs = [f"y{i}" for i in range(problem.assignments.outputs)]
    rng = np.random.default_rng(1)
    seeds = {f"d{name}": rng.standard_normal(problem.common_shape) for name in outputs}
    known = {**given, **seeds}
    for gradient in problem.gradients():
        own = {name: known[symbol] for name, symbol in gradient.arguments.items() if symbol in known}
        own_scalars = {name: (scalars or {})[name] for name in gradient.scalars}
        for name, value in gradient.problem.reference(own, own_scalars).items():
            known[gradient.arguments[name]] = value
    step = 1e-6
    for i, value in enumerate(values):
        along = rng.standard_normal(value.shape)
        high, low = (problem.reference({**given, f"x{i}": value + h * along}, scalars or {}) for h in (step, -step))
        change = sum((seeds[f"d{name}"] * (high[name] - low[name])).sum() for name in outputs) / (2 * step)
        found = known.get(f"dx{i}", np.zeros(value.shape))
        assert abs((found * along).sum() - change) <= 1e-7 * max(1.0, np.abs(found).sum(), abs(change)), (
            f"x{i} of {text}"
        )


def test_tables_are_complete() -> None:
    names = {name for name in FUNCTIONS if name not in ("abs", "max", "min")}
    assert set(FACTORS) == names - UNKNOWN
    assert names <= set(REFERENCE)
    assert all(len(factors) == FUNCTIONS[name] for name, factors in FACTORS.items())


@pytest.mark.parametrize("name", sorted({*FACTORS, "abs", "max", "min"}))
def test_functions(name: str) -> None:
    rng, count = np.random.default_rng(2), FUNCTIONS[name]
    low, high = (1.1, 2.0) if name in ABOVE_ONE else (-0.9, 0.9) if name in SIGNED else (0.05, 0.9)
    values = [rng.uniform(low, high, 60) for _ in range(count)]
    if name in ("clamp", "smoothstep"):
        values = [rng.uniform(-1, 1, 60), rng.uniform(-0.6, -0.4, 60), rng.uniform(0.4, 0.6, 60)]
        values = values if name == "clamp" else [values[1], values[2], values[0]]
    arguments = ", ".join(f"x{i}" for i in range(count))
    differences(f"y0 = {name}({arguments});", values)


@pytest.mark.parametrize("name", sorted(name for name in ACTIVATIONS if ACTIVATIONS[name].slope))
def test_activations(name: str) -> None:
    """The derivatives found here are those that the table of activations states, away from kinks."""
    activation = ACTIVATIONS[name]
    scalars = dict(activation.scalars)
    x = np.random.default_rng(3).uniform(0.1, 1.9, 50) * (
        1 if name in ("log", "scaled_log", "sqrt", "rsqrt", "power") else -0.37
    )
    x = np.abs(x) if "log" in name or "sqrt" in name or name == "power" else np.concatenate([x, -x])
    problem = activations.forward(name, x.shape, "float64")
    differences(problem.expression, [x], scalars)
    names = tuple(scalars)
    y = problem.reference({"x0": x}, scalars)["y0"]
    stated = PointwiseProblem(
        (x.shape, x.shape), f"real x = x0; real y = x1; {assigned('y0', activation.slope)}", (), names, dtype="float64"
    ).reference({"x0": x, "x1": y}, scalars)["y0"]
    found = np.zeros(x.shape)
    for gradient in problem.gradients():
        given = {
            own: {"dy0": np.ones(x.shape), "x0": x}[symbol]
            for own, symbol in gradient.arguments.items()
            if symbol != "dx0"
        }
        found = gradient.problem.reference(given, scalars)["y0"]
    if name == "selu":  # MXNet's convention below 0
        found, stated = found[x > 0], stated[x > 0]
    np.testing.assert_allclose(found, stated, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", sorted(name for name in BINARY if BINARY[name].da))
def test_binary_functions_with_broadcasting(name: str) -> None:
    rng = np.random.default_rng(4)
    values = [rng.uniform(0.3, 2, (4, 1, 5)), rng.uniform(0.3, 2, (3, 1))]
    differences(f"real a = x0; real b = x1; y0 = {BINARY[name].value};", values, dict(BINARY[name].scalars))


@pytest.mark.parametrize(
    "text",
    [
        "y0 = x0; y0 = x1 > y0 ? x1 : y0; y0 = x2 > y0 ? x2 : y0;",
        "real t = x0 * x1; t *= t; t -= x2; t /= 1 + x1 * x1; y0 = t; y1 = t * y0 + x0; y0 += y1;",
        "y0 = (x0 > 0 && x1 > 0) ? x0 * x1 : !(x2 > 0) || x0 < x1 ? x2 * x2 : -x0; y1 = (x0 > 0) * x1 + 2;",
        "y0 = exp(x0) / (exp(x0) + exp(x1) + exp(x2)); y1 = 3; y2 = +x1 - -x2;",
        "y0 = x0 * x0 * x0 * x0 * x0 * x0 * x0 * x0 * x1;",
    ],
)
def test_programs(text: str) -> None:
    rng = np.random.default_rng(5)
    differences(text, [rng.standard_normal(40) for _ in range(3)])


def test_names_of_scalars_stay_apart() -> None:
    scalars = {"v0": 0.3, "g1": 1.7, "in_x0": -0.4, "d": 2.0, "kv0": 0.1}
    rng = np.random.default_rng(6)
    differences("y0 = v0 * x0 * x0 + g1 * in_x0 * exp(d * x0) + kv0 * x0;", [rng.standard_normal(30)], scalars)


def test_length_grows_with_the_program() -> None:
    lengths = []
    for count in (10, 20, 40):
        text = "y0 = x0; " + "y0 = y0 * x0 + sin(y0); " * count
        problem = PointwiseProblem(((3,),), text)
        lengths.append(len(problem.gradients()[0].problem.expression) / count)
    assert lengths[2] < 1.2 * lengths[0]


def test_a_branch_that_was_left_out_is_no_number() -> None:
    """The gradient of x > 0 ? log(x) : 0 at 0 is 0, not 0 times infinity."""
    x = np.array([-1.0, 0.0, 4.0])
    for text in ("x0 > 0 ? log(x0) : 0", "x0 > 0 ? sqrt(x0) * x0 : 0", "x0 > 0 ? x0 / (x0 * x0) : 0"):
        (gradient,) = PointwiseProblem(((3,),), f"y0 = {text};", dtype="float64").gradients()
        given = {own: {"dy0": np.ones(3), "x0": x}[s] for own, s in gradient.arguments.items() if s != "dx0"}
        found = gradient.problem.reference(given)["y0"]
        assert not found[:2].any() and found[2] != 0, text


@pytest.mark.parametrize("text", ["1 / (1 + exp(-x0))", "x0 / (1 + exp(-x0))", "1 / (2 + expm1(-x0))"])
def test_powers_without_end_pass_no_nan_back(text: str) -> None:
    problem = PointwiseProblem(((6,),), f"y0 = {text};")
    (gradient,) = problem.gradients()
    x = np.array([-1000, -200, -100, 0, 100, 1000], np.float32)
    symbols = {"x0": x, "dy0": np.ones(6, np.float32)}
    plan = core.context().plan(gradient.problem)
    dx = np.full(6, np.nan, np.float32)
    given = {name: symbols.get(symbol, dx) for name, symbol in gradient.arguments.items()}
    plan.run(**given)
    wide = np.maximum(x.astype(np.float64), -700)
    logistic = 1 / (1 + np.exp(-wide))
    slope = logistic * (1 - logistic)
    np.testing.assert_allclose(dx, logistic + wide * slope if text[0] == "x" else slope, rtol=1e-5, atol=1e-20)


def test_kinks_follow_the_branch() -> None:
    problem = PointwiseProblem(((1,),), "y0 = x0 > 0 ? x0 : 0; y1 = fabs(x0); y2 = fmax(x0, 0); y3 = clamp(x0, 0, 1);")
    (gradient,) = problem.gradients()
    seeds = {"dy0": 1.0, "dy1": 10.0, "dy2": 100.0, "dy3": 1000.0, "x0": 0.0}
    given = {own: np.array([seeds[s]]) for own, s in gradient.arguments.items() if s != "dx0"}
    assert gradient.problem.reference(given)["y0"] == 1100


def test_missing_gradients_are_zero() -> None:
    problem = PointwiseProblem(((3,), (3,)), "y0 = floor(x0) + x1 * 0 + (x0 > 1);")
    assert [g.writes for g in problem.gradients()] == [("dx1",)]
    assert PointwiseProblem(((3,),), "y0 = x0 > 0 ? 1 : 0;").gradients() == ()


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_kernels_compute_the_gradients(dtype: str) -> None:
    context = core.context()
    if dtype == "float64" and not context.device.has_fp64:
        pytest.skip("the device has no float64")
    problem = core.parse(
        "pointwise x0[3,1,50] x1[4,1] y1=max[2] y2=prod[0,1] y3=sum[1] scalars{s} alpha{s + 1}"
        " : real t = tanh(x0 * x1) * s; y0 = t + x1; y1 = t * t; y2 = 1 + t / 4; y3 = t > 0 ? t : x0;"
    )
    problem = PointwiseProblem(
        problem.inputs, problem.expression, problem.reductions, problem.parameters, problem.alpha, dtype=dtype
    )
    rng, scalars = np.random.default_rng(7), {"s": 0.75}
    known = {f"x{i}": rng.standard_normal(shape).astype(dtype) for i, shape in enumerate(problem.inputs)}
    for argument in problem.arguments():
        if argument.role == "out":
            known[f"d{argument.name}"] = rng.standard_normal(argument.shape).astype(dtype)
    exact = dict(known)
    for gradient in problem.gradients():
        own = {name: 0.75 for name in gradient.scalars}
        shapes = {a.name: a.shape for a in gradient.problem.arguments()}
        names = {n: s for n, s in gradient.arguments.items() if s in exact}
        wide = gradient.problem.reference({n: exact[s].reshape(shapes[n]) for n, s in names.items()}, own)
        got = run(context, gradient.problem, {n: known[s].reshape(shapes[n]) for n, s in names.items()}, own)
        for name, symbol in gradient.arguments.items():
            if name in wide:
                exact[symbol], known[symbol] = wide[name], got[name]
    assert scalars["s"] == own["s"] == 0.75
    limit = {"float32": 1e-5, "float16": 2e-2, "float64": 1e-13}[dtype]
    for name in ("dx0", "dx1"):
        np.testing.assert_allclose(known[name], exact[name], rtol=limit, atol=limit * np.abs(exact[name]).max())


def test_gradient_expression_is_a_program() -> None:
    assignments = PointwiseProblem(((3,), (3,)), "y0 = x0 * x1; y1 = x0;").assignments
    text = gradient_expression(assignments, 2)
    assert text == "dx0 = dy1 + dy0 * x1; dx1 = dy0 * x0;"


def test_reductions_of_the_users_are_refused() -> None:
    with pytest.raises(ProblemError, match="'fold' of y0, expected sum, prod, max or min"):
        core.parse("pointwise x0[5] y0=fold{hypot(a, b)}{0}[0] : y0 = x0").gradients()
