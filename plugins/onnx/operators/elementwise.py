"""Functions of each element, arithmetic and comparisons with broadcasting."""

from __future__ import annotations

import math

import numpy as np
from onnx import helper

from clgraft.core.nn import dropout as random
from clgraft.core.nn.element_functions import SELU_ALPHA, SELU_SCALE, exact_power, find
from clgraft.core.nn.elementwise import SELECTION, extremum, find_binary, limited, mean, total
from clgraft.core.nn.formulas import assigned, number, renamed
from clgraft.core.nn.whole_numbers import IS_TRUE, rounded, truncated, wrapped
from clgraft.core.nn.whole_numbers import converted as as_whole
from clgraft.plugins.onnx.lowering import ModelBuilder, broadcast, is_real
from clgraft.plugins.onnx.nodes import OnnxNode, operator
from clgraft.plugins.onnx.values import DTYPES, REAL, OnnxValue, carrier_of, known, widest

# operator -> function of `core.nn.element_functions`
UNARY = {
    "Abs": "abs",
    "Acos": "acos",
    "Acosh": "acosh",
    "Asin": "asin",
    "Asinh": "asinh",
    "Atan": "atan",
    "Atanh": "atanh",
    "Ceil": "ceil",
    "Cos": "cos",
    "Cosh": "cosh",
    "Erf": "erf",
    "Exp": "exp",
    "Floor": "floor",
    "HardSwish": "hard_swish",
    "Log": "log",
    "Mish": "mish",
    "Neg": "negative",
    "Reciprocal": "reciprocal",
    "Relu": "relu_keep_nan",
    "Round": "round",
    "Sigmoid": "sigmoid",
    "Sign": "sign",
    "Sin": "sin",
    "Sinh": "sinh",
    "Softplus": "softrelu",
    "Softsign": "softsign",
    "Sqrt": "sqrt",
    "Tan": "tan",
    "Tanh": "tanh",
}
# operator -> function, attribute -> its scalar and ONNX's default
SHAPED = {
    "Celu": ("celu", {"alpha": ("alpha", 1.0)}),
    "Elu": ("elu_keep_zero", {"alpha": ("alpha", 1.0)}),
    "HardSigmoid": ("hard_sigmoid_1", {"alpha": ("slope", 0.2), "beta": ("offset", 0.5)}),
    "LeakyRelu": ("leaky_relu_keep_zero", {"alpha": ("slope", 0.01)}),
    "Selu": ("scaled_elu", {"alpha": ("alpha", SELU_ALPHA), "gamma": ("scale", SELU_SCALE)}),
    "Shrink": ("shrink", {"bias": ("bias", 0.0), "lambd": ("level", 0.5)}),
    "Swish": ("swish", {"alpha": ("beta", 1.0)}),
    "ThresholdedRelu": ("thresholded_relu", {"alpha": ("level", 1.0)}),
}
BINARY = {"Add": "add", "Sub": "subtract", "Mul": "multiply"}
COMPARISONS = {
    "Equal": "equal",
    "Greater": "greater",
    "GreaterOrEqual": "greater_or_equal",
    "Less": "less",
    "LessOrEqual": "less_or_equal",
    "And": "and",
    "Or": "or",
    "Xor": "xor",
}
TESTS = {"IsNaN": "is_nan", "Not": "not"}


def of_one(name: str, x: str = "x0", **scalars: float) -> str:
    """Return the text of a function of one element, with numbers as its scalars."""
    return renamed(find(name).value, {"x": x, **{scalar: f"({number(v)})" for scalar, v in scalars.items()}})


def of_two(name: str) -> str:
    """Return the text of a function of x0 and x1."""
    return renamed(find_binary(name).value, {"a": "x0", "b": "x1"})


@operator(*UNARY)
def unary(on: ModelBuilder, node: OnnxNode, x: OnnxValue) -> OnnxValue:
    """Lower a function of each element."""
    if node.operator in ("Ceil", "Floor", "Round") and not is_real(x):
        return x
    text = of_one(UNARY[node.operator])
    return on.pointwise(wrapped(x.dtype, text) if node.operator == "Neg" else text, [x])


@operator(*SHAPED)
def shaped(on: ModelBuilder, node: OnnxNode, x: OnnxValue) -> OnnxValue:
    """Lower a function with attributes."""
    name, attributes = SHAPED[node.operator]
    given = {scalar: node.get(attribute, usual) for attribute, (scalar, usual) in attributes.items()}
    return on.pointwise(of_one(name, **given), [x])


@operator(*BINARY)
def binary(on: ModelBuilder, node: OnnxNode, a: OnnxValue, b: OnnxValue) -> OnnxValue:
    """Lower arithmetic of two tensors."""
    return on.pointwise(wrapped(a.dtype, of_two(BINARY[node.operator])), [a, b])


@operator("PRelu")
def prelu(on: ModelBuilder, node: OnnxNode, x: OnnxValue, slope: OnnxValue) -> OnnxValue:
    """Lower a rectifier with slopes."""
    if x.ndim:  # one-sided: the slope broadcasts to x
        broadcast([x.shape, slope.shape])
    text = renamed(find("leaky_relu_keep_zero").value, {"x": "x0", "slope": "x1"})
    return on.pointwise(wrapped(x.dtype, text), [x, slope])


@operator("Div")
def divide(on: ModelBuilder, node: OnnxNode, a: OnnxValue, b: OnnxValue) -> OnnxValue:
    """Lower a division; of whole numbers it is truncated."""
    text = of_two("divide")
    return on.pointwise(text if is_real(a) else truncated(text), [a, b])


@operator("Mod")
def modulo(on: ModelBuilder, node: OnnxNode, a: OnnxValue, b: OnnxValue) -> OnnxValue:
    """Lower the remainder with the sign of a (fmod) or of b."""
    return on.pointwise(assigned("y0", of_two("fmod" if node.get("fmod", 0) else "modulo")), [a, b])


@operator("Pow")
def power(on: ModelBuilder, node: OnnxNode, a: OnnxValue, b: OnnxValue) -> OnnxValue:
    """Lower a power; frequent exponents are products and roots."""
    compute = on.carrier(a) if is_real(a) else on.widest([a, b])
    if b.array is not None and b.size == 1:
        exact = exact_power(on.number(b), rsqrt=False)
        if exact is not None and is_real(a):
            text = renamed(exact.value, {"x": "x0"})
            return on.reshaped(on.pointwise(text, [a]), broadcast([a.shape, b.shape]))
    text = of_two("power")
    return on.pointwise(text if is_real(a) else rounded(text), [a, b], a.dtype, compute)


@operator(*COMPARISONS)
def compare(on: ModelBuilder, node: OnnxNode, a: OnnxValue, b: OnnxValue) -> OnnxValue:
    """Lower a comparison, or the combination of truth values."""
    return on.pointwise(of_two(COMPARISONS[node.operator]), [a, b], "bool")


@operator(*TESTS)
def test(on: ModelBuilder, node: OnnxNode, x: OnnxValue) -> OnnxValue:
    """Lower a question about each element."""
    return on.pointwise(of_one(TESTS[node.operator]), [x], "bool")


@operator("IsInf")
def is_infinite(on: ModelBuilder, node: OnnxNode, x: OnnxValue) -> OnnxValue:
    """Lower the question whether elements are infinite."""
    signs = bool(node.get("detect_positive", 1)), bool(node.get("detect_negative", 1))
    names = {
        (True, True): "is_infinite",
        (True, False): "is_infinity",
        (False, True): "is_negative_infinity",
        (False, False): "never",
    }
    return on.pointwise(of_one(names[signs]), [x], "bool")


@operator("Sum", "Max", "Min", "Mean")
def several(on: ModelBuilder, node: OnnxNode, *values: OnnxValue) -> OnnxValue:
    """Lower a function of any number of tensors."""
    count = len(values)
    if node.operator == "Sum":
        text = total((1,) * count).value
    elif node.operator == "Mean":
        text = mean(count)
    else:
        text = extremum(count, "maximum_last" if node.operator == "Max" else "minimum_last")
    return on.pointwise(assigned("y0", text), values)


@operator("Clip")
def clip(
    on: ModelBuilder, node: OnnxNode, x: OnnxValue, low: OnnxValue | None = None, high: OnnxValue | None = None
) -> OnnxValue:
    """Lower limits, which are attributes up to opset 10 and inputs later."""
    if node.opset < 11:
        low, high = (known(np.array(node.get(name), x.dtype)) if node.has(name) else None for name in ("min", "max"))
    low, high = (None if limit is None or _is_no_limit(limit) else limit for limit in (low, high))
    limits = [limit for limit in (low, high) if limit is not None]
    if not limits:
        return x
    return on.pointwise(assigned("y0", limited(low is not None, high is not None)), [x, *limits])


def _is_no_limit(limit: OnnxValue) -> bool:
    return limit.array is not None and is_real(limit) and math.isinf(float(limit.array.reshape(-1)[0]))


@operator("Gelu")
def gelu(on: ModelBuilder, node: OnnxNode, x: OnnxValue) -> OnnxValue:
    """Lower the Gaussian error linear unit."""
    return on.pointwise(of_one("gelu_tanh" if node.get("approximate", "none") == "tanh" else "gelu_erf"), [x])


@operator("Where")
def where(on: ModelBuilder, node: OnnxNode, condition: OnnxValue, a: OnnxValue, b: OnnxValue) -> OnnxValue:
    """Lower a choice between two tensors."""
    return on.pointwise(SELECTION, [condition, a, b], a.dtype, on.widest([a, b]))


@operator("Identity")
def identity(on: ModelBuilder, node: OnnxNode, x: OnnxValue) -> OnnxValue:
    """Return the same value."""
    return x


@operator("Dropout")
def dropout(
    on: ModelBuilder, node: OnnxNode, x: OnnxValue, ratio: OnnxValue | None = None, training: OnnxValue | None = None
) -> tuple[OnnxValue | None, ...]:
    """Lower dropout, which changes nothing in inference."""
    if training is not None:
        node.expect(training.array is not None, "a training_mode that is no constant")
    if on.trains(training is not None and bool(on.number(training))):
        rate = float(node.get("ratio", 0.5) if ratio is None else on.number(ratio))
        key, read = on.key(node), on.given(x)
        y = on.taken(random.dropout(on.build, read, key, rate), x.dtype)
        if not node.wants(1):
            return y, None
        return y, on.pointwise(IS_TRUE, [on.taken(random.kept(on.build, read, key, rate), x.dtype)], "bool")
    if not node.wants(1):
        return x, None
    on.budget.expect("bytes", x.size, node)
    return x, known(np.ones(x.shape, bool))


@operator("Cast", "CastLike")
def cast(on: ModelBuilder, node: OnnxNode, x: OnnxValue, like: OnnxValue | None = None) -> OnnxValue:
    """Lower a conversion: to real numbers, whole numbers or truth values."""
    target = like.dtype if like is not None else helper.tensor_dtype_to_np_dtype(node.get("to")).name
    return converted(on, node, x, target)


def converted(on: ModelBuilder, node: OnnxNode, x: OnnxValue, target: str) -> OnnxValue:
    """Return a value in another of ONNX's types."""
    node.expect(target in DTYPES, f"type {target}")
    if target == x.dtype:
        return x
    if x.array is not None:
        with np.errstate(all="ignore"):
            return known(x.array.astype(target))
    if target in REAL:
        return on.made(on.tensor(x, target), x.shape, target)
    if target == "bool":
        return on.pointwise(IS_TRUE, [x], "bool")
    carrier = carrier_of(target, on.has_fp64)
    text = as_whole(target, real=is_real(x), wraps=x.dtype != "bool")
    compute = widest((on.carrier(x), carrier))
    return on.pointwise(text, [x], target, compute)
