"""Operators that work element by element, with broadcasting."""

from __future__ import annotations

import math
from typing import Any

import torch

from clgraft.core.nn import element_functions
from clgraft.core.nn.element_functions import RESULT, SELECT, exact_power, find
from clgraft.core.nn.elementwise import find_binary
from clgraft.core.nn.formulas import assigned, renamed
from clgraft.plugins.torch.lowering.builder import Builder, Lowering, lowers
from clgraft.plugins.torch.lowering.values import Operand

aten = torch.ops.aten

# operator -> function of `core.nn.element_functions`
UNARY = {
    aten.relu.default: "relu_keep_nan",
    aten.sigmoid.default: "sigmoid",
    aten.tanh.default: "tanh",
    aten.silu.default: "silu",
    aten.abs.default: "abs",
    aten.neg.default: "negative",
    aten.sqrt.default: "sqrt",
    aten.rsqrt.default: "rsqrt",
    aten.reciprocal.default: "reciprocal",
    aten.sin.default: "sin",
    aten.cos.default: "cos",
    aten.erf.default: "erf",
    aten.expm1.default: "expm1",
    aten.log1p.default: "log1p",
    aten.exp.default: "exp",
    aten.log.default: "log",
    aten.hardsigmoid.default: "hard_sigmoid_6",
    aten.hardswish.default: "hard_swish",
}
# operator -> function of `core.nn.elementwise`
BINARY = {
    aten.mul.Tensor: "multiply",
    aten.mul.Scalar: "multiply",
    aten.div.Tensor: "divide",
    aten.div.Scalar: "divide",
    aten.maximum.default: "maximum_last",
    aten.minimum.default: "minimum_last",
}
# operator -> function whose gradient it is, of dy and x or y
GRADIENTS = {
    aten.sigmoid_backward.default: ("sigmoid", "y"),
    aten.tanh_backward.default: ("tanh", "y"),
    aten.silu_backward.default: ("silu", "x"),
    aten.hardsigmoid_backward.default: ("hard_sigmoid_6", "x"),
    aten.hardswish_backward.default: ("hard_swish", "x"),
}


GELU = {"none": "gelu", "tanh": "gelu_tanh"}


def evaluate(build: Builder, text: str, **values: Any) -> Operand:
    """Return a formula of named operands and numbers; numbers are given with each run.

    Operands become x0, x1, ... in the text, as in the core's own problems, which its passes know again.
    """
    operands = [value for value in values.values() if isinstance(value, Operand)]
    scalars = {name: float(value) for name, value in values.items() if not isinstance(value, Operand)}
    places = {name: f"x{i}" for i, name in enumerate(n for n, v in values.items() if isinstance(v, Operand))}
    return build.pointwise(assigned("y0", renamed(text, places)), operands, scalars)[0]


def unary(name: str) -> Lowering:
    """Return the lowering of a function of x."""
    return lambda build, x: evaluate(build, find(name).value, x=x)


def binary(name: str) -> Lowering:
    """Return the lowering of a function of a and b, of which b may be a number."""
    return lambda build, a, b: evaluate(build, find_binary(name).value, a=a, b=b)


def gradient(name: str, read: str) -> Lowering:
    """Return the lowering of a gradient of dy and x or y."""
    return lambda build, dy, known: evaluate(build, find(name).gradient(SELECT), dy=dy, **{read: known})


for _operator, _name in UNARY.items():
    lowers(_operator)(unary(_name))
for _operator, _name in BINARY.items():
    lowers(_operator)(binary(_name))
for _operator, _own in GRADIENTS.items():
    lowers(_operator)(gradient(*_own))


def _multiple(build: Builder, name: str, a: Operand, b: Any, factor: float) -> Operand:
    """Return a sum or a difference of a and a multiple of b."""
    if factor == 1:
        return evaluate(build, find_binary(name).value, a=a, b=b)
    return evaluate(build, find_binary(f"{name}_multiple").value, a=a, b=b, factor=factor)


@lowers(aten.add.Tensor, aten.add.Scalar)
def add(build: Builder, a: Operand, b: Any, alpha: float = 1) -> Operand:
    """Return a + alpha b."""
    return _multiple(build, "add", a, b, alpha)


@lowers(aten.sub.Tensor, aten.sub.Scalar)
def subtract(build: Builder, a: Operand, b: Any, alpha: float = 1) -> Operand:
    """Return a - alpha b."""
    return _multiple(build, "subtract", a, b, alpha)


@lowers(aten.rsub.Scalar, aten.rsub.Tensor)
def subtract_from(build: Builder, a: Operand, b: Any, alpha: float = 1) -> Operand:
    """Return b - alpha a."""
    text = renamed(find_binary("subtract_multiple").value, {"a": "b", "b": "a"})
    return evaluate(build, text, a=a, b=b, factor=alpha)


@lowers(aten.pow.Tensor_Scalar)
def power(build: Builder, x: Operand, exponent: float) -> Operand:
    """Return x to a power."""
    exact = exact_power(exponent)
    if exact is not None:
        return evaluate(build, exact.value, x=x)
    return evaluate(build, find_binary("power").value, a=x, b=exponent)


@lowers(aten.threshold_backward.default)
def threshold_backward(build: Builder, dy: Operand, x: Operand, level: float) -> Operand:
    """Return dy where x, the input or the result, is above a level."""
    return evaluate(build, find("thresholded_relu").gradient(SELECT), dy=dy, x=x, level=level)


@lowers(aten.gelu.default)
def gelu(build: Builder, x: Operand, approximate: str = "none") -> Operand:
    """Return x times the normal distribution's integral, or its approximation by tanh."""
    return evaluate(build, find(GELU[approximate]).value, x=x)


@lowers(aten.gelu_backward.default)
def gelu_backward(build: Builder, dy: Operand, x: Operand, approximate: str = "none") -> Operand:
    """Return the gradient of `gelu`."""
    return evaluate(build, find(GELU[approximate]).gradient(SELECT), dy=dy, x=x)


@lowers(aten.hardtanh.default)
def hardtanh(build: Builder, x: Operand, low: float = -1, high: float = 1) -> Operand:
    """Return x, at least `low` and at most `high`."""
    return evaluate(build, find("clip").value, x=x, low=low, high=high)


@lowers(aten.hardtanh_backward.default)
def hardtanh_backward(build: Builder, dy: Operand, x: Operand, low: float, high: float) -> Operand:
    """Return dy where x is between the bounds, which are excluded."""
    return evaluate(build, find("clip").gradient(SELECT), dy=dy, x=x, low=low, high=high)


@lowers(aten.clamp.default, aten.clamp_min.default)
def clamp(build: Builder, x: Operand, low: float | None = None, high: float | None = None) -> Operand:
    """Return x, at least `low` and at most `high`; both are optional."""
    return hardtanh(build, x, -math.inf if low is None else low, math.inf if high is None else high)


@lowers(aten.leaky_relu.default)
def leaky_relu(build: Builder, x: Operand, slope: float = 0.01) -> Operand:
    """Return x above 0 and a multiple of it below."""
    return evaluate(build, find("leaky_relu").value, x=x, slope=slope)


@lowers(aten.leaky_relu_backward.default)
def leaky_relu_backward(build: Builder, dy: Operand, x: Operand, slope: float, is_result: bool) -> Operand:
    """Return the gradient of `leaky_relu`."""
    return evaluate(build, find("leaky_relu").gradient(SELECT), dy=dy, x=x, slope=slope)


@lowers(aten.elu.default)
def elu(build: Builder, x: Operand, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Operand:
    """Return scale x above 0 and scale alpha (exp(input_scale x) - 1) below."""
    function = element_functions.elu(alpha, scale, input_scale)
    return evaluate(build, function.value, x=x, **function.scalars)


@lowers(aten.celu.default)
def celu(build: Builder, x: Operand, alpha: float = 1) -> Operand:
    """Return x above 0 and alpha (exp(x / alpha) - 1) below; its gradient is that of `elu`."""
    function = element_functions.celu(alpha)
    return evaluate(build, function.value, x=x, **function.scalars)


@lowers(aten.elu_backward.default)
def elu_backward(
    build: Builder, dy: Operand, alpha: float, scale: float, input_scale: float, is_result: bool, x: Operand
) -> Operand:
    """Return the gradient of `elu`, from its input or its result."""
    function = element_functions.elu(alpha, scale, input_scale)
    read = {"y" if is_result else "x": x}
    return evaluate(build, function.gradient(RESULT if is_result else SELECT), dy=dy, **read, **function.scalars)
