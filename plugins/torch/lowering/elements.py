"""Operators that work element by element, with broadcasting."""

from __future__ import annotations

import math
import re
from typing import Any

import torch

from clgraft.core.operators.pointwise.formulas.activation import find
from clgraft.plugins.torch.lowering.builder import Builder, lowers
from clgraft.plugins.torch.lowering.values import Operand

aten = torch.ops.aten

WORD = re.compile(r"(?<![\w.])[A-Za-z_]\w*")


def evaluate(build: Builder, text: str, **values: Any) -> Operand:
    """Return an expression of named operands and numbers; numbers are given with each run.

    Operands become x0, x1, ... in the text, as in the core's own problems, which its passes know again.
    """
    operands = [value for value in values.values() if isinstance(value, Operand)]
    scalars = {name: float(value) for name, value in values.items() if not isinstance(value, Operand)}
    places = {name: f"x{i}" for i, name in enumerate(n for n, v in values.items() if isinstance(v, Operand))}
    named = WORD.sub(lambda found: places.get(found[0], found[0]), text)
    return build.pointwise(f"y0 = {named};", operands, scalars)[0]


def _unary(operator: Any, name: str) -> None:
    """Enter an operator that is one of the core's activations."""
    formula = find(name)

    def lower(build: Builder, x: Operand) -> Operand:
        return evaluate(build, formula.forward, x=x, **dict(formula.scalars))

    lowers(operator)(lower)


for _operator, _name in (
    (aten.relu.default, "relu_keep_nan"),
    (aten.sigmoid.default, "sigmoid"),
    (aten.tanh.default, "tanh"),
    (aten.silu.default, "silu"),
    (aten.abs.default, "abs"),
    (aten.neg.default, "negative"),
    (aten.sqrt.default, "sqrt"),
    (aten.rsqrt.default, "rsqrt"),
    (aten.reciprocal.default, "reciprocal"),
    (aten.sin.default, "sin"),
    (aten.cos.default, "cos"),
    (aten.erf.default, "erf"),
    (aten.expm1.default, "expm1"),
    (aten.log1p.default, "log1p"),
    (aten.exp.default, "exp"),
    (aten.log.default, "log"),
):
    _unary(_operator, _name)


@lowers(aten.add.Tensor, aten.add.Scalar)
def add(build: Builder, a: Operand, b: Any, alpha: float = 1) -> Operand:
    """Return a + alpha b."""
    if alpha == 1:
        return evaluate(build, "a + b", a=a, b=b)
    return evaluate(build, "a + factor * b", a=a, b=b, factor=alpha)


@lowers(aten.sub.Tensor, aten.sub.Scalar)
def subtract(build: Builder, a: Operand, b: Any, alpha: float = 1) -> Operand:
    """Return a - alpha b."""
    if alpha == 1:
        return evaluate(build, "a - b", a=a, b=b)
    return evaluate(build, "a - factor * b", a=a, b=b, factor=alpha)


@lowers(aten.rsub.Scalar, aten.rsub.Tensor)
def subtract_from(build: Builder, a: Operand, b: Any, alpha: float = 1) -> Operand:
    """Return b - alpha a."""
    return evaluate(build, "b - factor * a", a=a, b=b, factor=alpha)


@lowers(aten.mul.Tensor, aten.mul.Scalar)
def multiply(build: Builder, a: Operand, b: Any) -> Operand:
    """Return a b."""
    return evaluate(build, "a * b", a=a, b=b)


@lowers(aten.div.Tensor, aten.div.Scalar)
def divide(build: Builder, a: Operand, b: Any) -> Operand:
    """Return a / b."""
    return evaluate(build, "a / b", a=a, b=b)


@lowers(aten.maximum.default)
def maximum(build: Builder, a: Operand, b: Operand) -> Operand:
    """Return the greater of a and b, or NaN if one is."""
    return evaluate(build, "isnan(a) || a > b ? a : b", a=a, b=b)


@lowers(aten.minimum.default)
def minimum(build: Builder, a: Operand, b: Operand) -> Operand:
    """Return the smaller of a and b, or NaN if one is."""
    return evaluate(build, "isnan(a) || a < b ? a : b", a=a, b=b)


@lowers(aten.pow.Tensor_Scalar)
def power(build: Builder, x: Operand, exponent: float) -> Operand:
    """Return x to a power."""
    exact = {2: "x * x", 3: "x * x * x", 1: "x", 0.5: "sqrt(x)", -1: "1 / x", -0.5: "1 / sqrt(x)"}
    if exponent in exact:
        return evaluate(build, exact[exponent], x=x)
    return evaluate(build, "pow(x, exponent)", x=x, exponent=exponent)


@lowers(aten.threshold_backward.default)
def threshold_backward(build: Builder, dy: Operand, x: Operand, level: float) -> Operand:
    """Return dy where x, the input or the result, is above a level."""
    return evaluate(build, "x <= level ? 0 : dy", dy=dy, x=x, level=level)


@lowers(aten.sigmoid_backward.default)
def sigmoid_backward(build: Builder, dy: Operand, y: Operand) -> Operand:
    """Return the gradient of a logistic function from its result."""
    return evaluate(build, f"dy * ({find('sigmoid').backward})", dy=dy, y=y)


@lowers(aten.tanh_backward.default)
def tanh_backward(build: Builder, dy: Operand, y: Operand) -> Operand:
    """Return the gradient of a hyperbolic tangent from its result."""
    return evaluate(build, f"dy * ({find('tanh').backward})", dy=dy, y=y)


@lowers(aten.silu_backward.default)
def silu_backward(build: Builder, dy: Operand, x: Operand) -> Operand:
    """Return the gradient of x sigmoid(x)."""
    return evaluate(build, f"dy * ({find('silu').backward})", dy=dy, x=x)


TANH_GELU = "M_SQRT2 * M_2_SQRTPI * 0.5 * (x + 0.044715 * x * x * x)"  # Hendrycks and Gimpel 2016


@lowers(aten.gelu.default)
def gelu(build: Builder, x: Operand, approximate: str = "none") -> Operand:
    """Return x times the normal distribution's integral, or its approximation by tanh."""
    text = find("gelu").forward if approximate == "none" else f"0.5 * x * (1 + tanh({TANH_GELU}))"
    return evaluate(build, text, x=x)


@lowers(aten.gelu_backward.default)
def gelu_backward(build: Builder, dy: Operand, x: Operand, approximate: str = "none") -> Operand:
    """Return the gradient of `gelu`."""
    if approximate == "none":
        return evaluate(build, f"dy * ({find('gelu').backward})", dy=dy, x=x)
    slope = "M_SQRT2 * M_2_SQRTPI * 0.5 * (1 + 3 * 0.044715 * x * x)"
    text = f"real x = x1; real t = tanh({TANH_GELU}); y0 = x0 * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * {slope});"
    return build.pointwise(text, [dy, x])[0]


@lowers(aten.hardtanh.default)
def hardtanh(build: Builder, x: Operand, low: float = -1, high: float = 1) -> Operand:
    """Return x, at least `low` and at most `high`."""
    return evaluate(build, find("clip").forward, x=x, low=low, high=high)


@lowers(aten.hardtanh_backward.default)
def hardtanh_backward(build: Builder, dy: Operand, x: Operand, low: float, high: float) -> Operand:
    """Return dy where x is between the bounds, which are excluded."""
    return evaluate(build, "x <= low || x >= high ? 0 : dy", dy=dy, x=x, low=low, high=high)


@lowers(aten.clamp.default, aten.clamp_min.default)
def clamp(build: Builder, x: Operand, low: float | None = None, high: float | None = None) -> Operand:
    """Return x, at least `low` and at most `high`; both are optional."""
    bounds = {"low": -math.inf if low is None else low, "high": math.inf if high is None else high}
    return evaluate(build, find("clip").forward, x=x, **bounds)


HARD_SIGMOID = "(x <= -3 ? 0 : x >= 3 ? 1 : x / 6 + 0.5)"


@lowers(aten.hardsigmoid.default)
def hardsigmoid(build: Builder, x: Operand) -> Operand:
    """Return x / 6 + 1/2, at least 0 and at most 1."""
    return evaluate(build, HARD_SIGMOID, x=x)


@lowers(aten.hardsigmoid_backward.default)
def hardsigmoid_backward(build: Builder, dy: Operand, x: Operand) -> Operand:
    """Return the gradient of `hardsigmoid`."""
    return evaluate(build, "x > -3 && x < 3 ? dy / 6 : 0", dy=dy, x=x)


@lowers(aten.hardswish.default)
def hardswish(build: Builder, x: Operand) -> Operand:
    """Return x times `hardsigmoid`."""
    return evaluate(build, f"x * {HARD_SIGMOID}", x=x)


@lowers(aten.hardswish_backward.default)
def hardswish_backward(build: Builder, dy: Operand, x: Operand) -> Operand:
    """Return the gradient of `hardswish`."""
    return evaluate(build, "x < -3 ? 0 : x <= 3 ? dy * (x / 3 + 0.5) : dy", dy=dy, x=x)


@lowers(aten.leaky_relu.default)
def leaky_relu(build: Builder, x: Operand, slope: float = 0.01) -> Operand:
    """Return x above 0 and a multiple of it below."""
    return evaluate(build, find("leaky_relu").forward, x=x, slope=slope)


@lowers(aten.leaky_relu_backward.default)
def leaky_relu_backward(build: Builder, dy: Operand, x: Operand, slope: float, is_result: bool) -> Operand:
    """Return the gradient of `leaky_relu`."""
    return evaluate(build, "x > 0 ? dy : slope * dy", dy=dy, x=x, slope=slope)


@lowers(aten.elu.default)
def elu(build: Builder, x: Operand, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Operand:
    """Return scale x above 0 and scale alpha (exp(input_scale x) - 1) below."""
    if scale == 1 and input_scale == 1:
        return evaluate(build, find("elu").forward, x=x, alpha=alpha)
    text = "x > 0 ? scale * x : least * expm1(slope * x)"
    return evaluate(build, text, x=x, scale=scale, least=scale * alpha, slope=input_scale)


@lowers(aten.celu.default)
def celu(build: Builder, x: Operand, alpha: float = 1) -> Operand:
    """Return x above 0 and alpha (exp(x / alpha) - 1) below; its gradient is that of `elu`."""
    return elu(build, x, alpha, input_scale=1 / alpha)


@lowers(aten.elu_backward.default)
def elu_backward(
    build: Builder, dy: Operand, alpha: float, scale: float, input_scale: float, is_result: bool, x: Operand
) -> Operand:
    """Return the gradient of `elu`, from its input or its result."""
    if scale == 1 and input_scale == 1:
        below = "x + alpha" if is_result else "alpha * exp(x)"
        return evaluate(build, f"x > 0 ? dy : dy * ({below})", dy=dy, x=x, alpha=alpha)
    below = "x + least" if is_result else "least * exp(slope * x)"
    text = f"x > 0 ? scale * dy : slope * dy * ({below})"
    return evaluate(build, text, dy=dy, x=x, scale=scale, least=scale * alpha, slope=input_scale)
