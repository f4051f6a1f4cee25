"""Pointwise problems in float64 with NumPy: the parsed assignments, evaluated on whole arrays."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from clgraft.core.operators.pointwise.expression import ALIASES, Term, read_value


def _vectorized(function: Callable[[float], float]) -> Callable[[Any], Any]:
    return np.vectorize(function, otypes=[np.float64])


def _gamma(x: float) -> float:
    try:
        return math.gamma(x)
    except (ValueError, OverflowError):
        return math.inf if x >= 0 else math.nan


def _log_gamma(x: float) -> float:
    try:
        return math.lgamma(x)
    except (ValueError, OverflowError):
        return math.inf


def _by_magnitude(a: Any, b: Any, first: Any, otherwise: Any) -> Any:
    return np.where(first(np.abs(a), np.abs(b)), a, np.where(first(np.abs(b), np.abs(a)), b, otherwise(a, b)))


def _smoothstep(low: Any, high: Any, x: Any) -> Any:
    t = np.clip((x - low) / (high - low), 0, 1)
    return t * t * (3 - 2 * t)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "acos": np.arccos,
    "acosh": np.arccosh,
    "acospi": lambda x: np.arccos(x) / np.pi,
    "asin": np.arcsin,
    "asinh": np.arcsinh,
    "asinpi": lambda x: np.arcsin(x) / np.pi,
    "atan": np.arctan,
    "atanh": np.arctanh,
    "atanpi": lambda x: np.arctan(x) / np.pi,
    "cbrt": np.cbrt,
    "ceil": np.ceil,
    "cos": np.cos,
    "cosh": np.cosh,
    "cospi": lambda x: np.cos(np.pi * np.fmod(x, 2)),
    "erf": _vectorized(math.erf),
    "erfc": _vectorized(math.erfc),
    "exp": np.exp,
    "exp2": np.exp2,
    "exp10": lambda x: np.power(10.0, x),
    "expm1": np.expm1,
    "fabs": np.abs,
    "floor": np.floor,
    "lgamma": _vectorized(_log_gamma),
    "log": np.log,
    "log2": np.log2,
    "log10": np.log10,
    "log1p": np.log1p,
    "rint": np.rint,
    "round": lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x),
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sign": lambda x: np.where(np.isnan(x), 0.0, np.sign(x)),
    "sin": np.sin,
    "sinh": np.sinh,
    "sinpi": lambda x: np.sin(np.pi * np.fmod(x, 2)),
    "sqrt": np.sqrt,
    "tan": np.tan,
    "tanh": np.tanh,
    "tanpi": lambda x: np.tan(np.pi * np.fmod(x, 1)),
    "tgamma": _vectorized(_gamma),
    "trunc": np.trunc,
    "atan2": np.arctan2,
    "copysign": np.copysign,
    "fdim": lambda a, b: np.where(a > b, a - b, np.where(np.isnan(a) | np.isnan(b), np.nan, 0.0)),
    "fmax": np.fmax,
    "fmin": np.fmin,
    "fmod": np.fmod,
    "hypot": np.hypot,
    "maxmag": lambda a, b: _by_magnitude(a, b, np.greater, np.fmax),
    "minmag": lambda a, b: _by_magnitude(a, b, np.less, np.fmin),
    "nextafter": np.nextafter,
    "pow": np.power,
    "remainder": lambda a, b: a - b * np.rint(a / b),
    "step": lambda edge, x: np.where(x < edge, 0.0, 1.0),
    "clamp": lambda x, low, high: np.fmin(np.fmax(x, low), high),
    "fma": lambda a, b, c: a * b + c,
    "mad": lambda a, b, c: a * b + c,
    "mix": lambda a, b, t: a + (b - a) * t,
    "smoothstep": _smoothstep,
    "isnan": np.isnan,
    "isinf": np.isinf,
    "isfinite": np.isfinite,
    "signbit": np.signbit,
    "+": np.add,
    "-": lambda a, *b: np.subtract(a, *b) if b else np.negative(a),
    "*": np.multiply,
    "/": np.divide,
    "<": np.less,
    ">": np.greater,
    "<=": np.less_equal,
    ">=": np.greater_equal,
    "==": np.equal,
    "!=": np.not_equal,
    "&&": np.logical_and,
    "||": np.logical_or,
    "!": np.logical_not,
    "?": np.where,
    "real": lambda x: np.asarray(x, np.float64),
    "truth": lambda x: np.not_equal(x, 0),
}
CONSTANTS = {
    "M_PI": math.pi,
    "M_E": math.e,
    "M_SQRT2": math.sqrt(2),
    "M_SQRT1_2": math.sqrt(0.5),
    "M_2_SQRTPI": 2 / math.sqrt(math.pi),
    "M_LN2": math.log(2),
    "INFINITY": math.inf,
    "NAN": math.nan,
}
FOLDS: dict[str, Callable[..., Any]] = {"sum": np.sum, "prod": np.prod, "max": np.max, "min": np.min}
EMPTY = {"max": -math.inf, "min": math.inf}


def evaluate(problem: Any, arrays: Mapping[str, np.ndarray], scalars: Mapping[str, float]) -> dict[str, np.ndarray]:
    """Compute a pointwise problem's results from its definition.

    Parameters
    ----------
    problem : PointwiseProblem
    arrays : mapping of str to numpy.ndarray
        The inputs by name, of the problem's shapes, and with `beta` the outputs' old values.
    scalars : mapping of str to float
        All of the problem's.
    """
    common, results = problem.common_shape, {}
    names: dict[str, Any] = {f"x{i}": np.asarray(arrays[f"x{i}"], np.float64) for i in range(len(problem.inputs))}
    names.update({name: np.float64(value) for name, value in scalars.items()})
    factors = {name: value_of(getattr(problem, name), scalars) for name in ("alpha", "beta") if getattr(problem, name)}
    with np.errstate(all="ignore"):
        for statement in problem.assignments.statements:
            names[statement.target] = _value(statement.value, names)
        for i, reduction in enumerate(problem.reductions):
            value = np.broadcast_to(names[f"y{i}"], common)
            if reduction is not None:
                value = _folded(reduction, value).reshape(reduction.shape or ())
            value = value * factors.get("alpha", 1.0)
            if "beta" in factors:
                value = value + factors["beta"] * arrays[f"y{i}"]
            results[f"y{i}"] = np.array(value, np.float64)
    return results


def value_of(text: str, scalars: Mapping[str, float]) -> float:
    """Return the value of an expression of scalars."""
    term = read_value(text, {name: name for name in scalars}, "a factor")
    return float(_value(term, {name: np.float64(value) for name, value in scalars.items()}))


def _folded(reduction: Any, value: np.ndarray) -> np.ndarray:
    axes, operator = reduction.axes, reduction.operator
    if operator in EMPTY:
        return FOLDS[operator](value, axis=axes, initial=EMPTY[operator])
    if operator in FOLDS:
        return FOLDS[operator](value, axis=axes)
    combine = read_value(reduction.combine, {"a": "a", "b": "b"}, "combine")
    kept = [axis for axis in range(value.ndim) if axis not in axes]
    rows = value.transpose(*axes, *kept).reshape(-1, *(value.shape[axis] for axis in kept))
    total = np.full(rows.shape[1:], value_of(reduction.identity, {}))
    for row in rows:
        total = _value(combine, {"a": total, "b": row})
    return total


def _value(term: Term, names: Mapping[str, Any]) -> Any:
    if term.operator == "name":
        return names[term.word]
    if term.operator == "number":
        return np.float64(CONSTANTS[term.word] if term.word in CONSTANTS else float(term.word))
    operands = [_value(operand, names) for operand in term.operands]
    return FUNCTIONS[_NAMES.get(term.operator, term.operator)](*operands)


_NAMES = {alias: name for alias, name in ALIASES.items() if name.islower()}  # abs, max and min
