"""Functions of each element, arithmetic and comparisons with broadcasting."""

from __future__ import annotations

import math

import numpy as np
from onnx import helper

from clgraft.plugins.onnx.lowering import Lowering, broadcast, is_real, literal
from clgraft.plugins.onnx.nodes import Node, operator
from clgraft.plugins.onnx.values import DTYPES, REAL, Value, carrier_of, known

# what NaN and infinity become, as in C on x86; 0 in other whole numbers
NOT_FINITE = {"int32": -(2.0**31), "int64": -(2.0**63), "uint64": 2.0**63}
BITS = {"int8": 8, "uint8": 8, "int16": 16, "uint16": 16, "int32": 32, "uint32": 32}

# operator -> expression of x0
UNARY = {
    "Abs": "fabs(x0)",
    "Acos": "acos(x0)",
    "Acosh": "acosh(x0)",
    "Asin": "asin(x0)",
    "Asinh": "asinh(x0)",
    "Atan": "atan(x0)",
    "Atanh": "atanh(x0)",
    "Ceil": "ceil(x0)",
    "Cos": "cos(x0)",
    "Cosh": "cosh(x0)",
    "Erf": "erf(x0)",
    "Exp": "exp(x0)",
    "Floor": "floor(x0)",
    "HardSwish": "x0 * (x0 < -3 ? 0 : x0 > 3 ? 1 : x0 / 6 + 0.5)",
    "Log": "log(x0)",
    "Mish": "x0 * tanh(fmax(x0, 0) + log1p(exp(-fabs(x0))))",
    "Neg": "-x0",
    "Reciprocal": "1 / x0",
    "Relu": "x0 < 0 ? 0 : x0",
    "Round": "rint(x0)",
    "Sigmoid": "1 / (1 + exp(-x0))",
    "Sign": "x0 > 0 ? 1 : x0 < 0 ? -1 : 0",
    "Sin": "sin(x0)",
    "Sinh": "sinh(x0)",
    "Softplus": "fmax(x0, 0) + log1p(exp(-fabs(x0)))",
    "Softsign": "x0 / (1 + fabs(x0))",
    "Sqrt": "sqrt(x0)",
    "Tan": "tan(x0)",
    "Tanh": "tanh(x0)",
}
# operator -> defaults of its attributes, expression of x0 with them
SHAPED = {
    "Celu": ({"alpha": 1.0}, "fmax(x0, 0) + fmin(0, {alpha} * expm1(x0 / {alpha}))"),
    "Elu": ({"alpha": 1.0}, "x0 >= 0 ? x0 : {alpha} * expm1(x0)"),
    "HardSigmoid": ({"alpha": 0.2, "beta": 0.5}, "fmax(0, fmin(1, {alpha} * x0 + {beta}))"),
    "LeakyRelu": ({"alpha": 0.01}, "x0 < 0 ? {alpha} * x0 : x0"),
    "Selu": (
        {"alpha": 1.6732632423543772, "gamma": 1.0507009873554805},
        "x0 > 0 ? {gamma} * x0 : {gamma} * {alpha} * expm1(x0)",
    ),
    "Shrink": ({"bias": 0.0, "lambd": 0.5}, "x0 < -{lambd} ? x0 + {bias} : x0 > {lambd} ? x0 - {bias} : 0"),
    "Swish": ({"alpha": 1.0}, "x0 / (1 + exp(-{alpha} * x0))"),
    "ThresholdedRelu": ({"alpha": 1.0}, "x0 > {alpha} ? x0 : 0"),
}
BINARY = {"Add": "x0 + x1", "Sub": "x0 - x1", "Mul": "x0 * x1", "PRelu": "x0 < 0 ? x1 * x0 : x0"}
COMPARISONS = {
    "Equal": "x0 == x1",
    "Greater": "x0 > x1",
    "GreaterOrEqual": "x0 >= x1",
    "Less": "x0 < x1",
    "LessOrEqual": "x0 <= x1",
    "And": "x0 && x1",
    "Or": "x0 || x1",
    "Xor": "(x0 != 0) != (x1 != 0)",
}
TESTS = {"IsNaN": "isnan(x0)", "Not": "x0 == 0"}


def wrapped(dtype: str, expression: str) -> str:
    """Return an expression whose value is taken modulo the range of a type of whole numbers."""
    if dtype not in BITS:
        return expression
    span = float(2 ** BITS[dtype])
    low = 0.0 if dtype.startswith("u") else span / 2
    return f"real w = {expression} + {low!r}; y0 = w - {span!r} * floor(w / {span!r}) - {low!r};"


@operator(*UNARY)
def unary(on: Lowering, node: Node, x: Value) -> Value:
    """Lower a function of each element."""
    if node.operator in ("Ceil", "Floor", "Round") and not is_real(x):
        return x
    return on.pointwise(wrapped(x.dtype, UNARY[node.operator]) if node.operator == "Neg" else UNARY[node.operator], [x])


@operator(*SHAPED)
def shaped(on: Lowering, node: Node, x: Value) -> Value:
    """Lower a function with attributes."""
    defaults, expression = SHAPED[node.operator]
    values = {name: literal(node.get(name, value)) for name, value in defaults.items()}
    for name, text in values.items():
        expression = expression.replace("{" + name + "}", f"({text})")
    return on.pointwise(expression, [x])


@operator(*BINARY)
def binary(on: Lowering, node: Node, a: Value, b: Value) -> Value:
    """Lower arithmetic of two tensors."""
    if node.operator == "PRelu" and a.ndim:  # one-sided: the slope broadcasts to x
        broadcast([a.shape, b.shape])
    return on.pointwise(wrapped(a.dtype, BINARY[node.operator]), [a, b])


@operator("Div")
def divide(on: Lowering, node: Node, a: Value, b: Value) -> Value:
    """Lower a division; of whole numbers it is truncated."""
    return on.pointwise("x0 / x1" if is_real(a) else "trunc(x0 / x1)", [a, b])


@operator("Mod")
def modulo(on: Lowering, node: Node, a: Value, b: Value) -> Value:
    """Lower the remainder with the sign of a (fmod) or of b."""
    if node.get("fmod", 0):
        return on.pointwise("fmod(x0, x1)", [a, b])
    return on.pointwise("real r = fmod(x0, x1); y0 = r != 0 && (r < 0) != (x1 < 0) ? r + x1 : r;", [a, b])


@operator("Pow")
def power(on: Lowering, node: Node, a: Value, b: Value) -> Value:
    """Lower a power; frequent exponents are products and roots."""
    compute = on.carrier(a) if is_real(a) else on.widest([a, b])
    if b.array is not None and b.size == 1:
        text = {2.0: "x0 * x0", 1.0: "x0", 3.0: "x0 * x0 * x0", 0.5: "sqrt(x0)", -1.0: "1 / x0"}.get(on.number(b))
        if text and is_real(a):
            return on.reshaped(on.pointwise(text, [a]), broadcast([a.shape, b.shape]))
    return on.pointwise("pow(x0, x1)" if is_real(a) else "rint(pow(x0, x1))", [a, b], a.dtype, compute)


@operator(*COMPARISONS)
def compare(on: Lowering, node: Node, a: Value, b: Value) -> Value:
    """Lower a comparison, or the combination of truth values."""
    return on.pointwise(COMPARISONS[node.operator], [a, b], "bool")


@operator(*TESTS)
def test(on: Lowering, node: Node, x: Value) -> Value:
    """Lower a question about each element."""
    return on.pointwise(TESTS[node.operator], [x], "bool")


@operator("IsInf")
def is_infinite(on: Lowering, node: Node, x: Value) -> Value:
    """Lower the question whether elements are infinite."""
    signs = [("detect_positive", "x0 == INFINITY"), ("detect_negative", "x0 == (-INFINITY)")]
    wanted = [text for name, text in signs if node.get(name, 1)]
    return on.pointwise(" || ".join(wanted) or "x0 != x0 && x0 == x0", [x], "bool")


@operator("Sum", "Max", "Min", "Mean")
def several(on: Lowering, node: Node, *values: Value) -> Value:
    """Lower a function of any number of tensors."""
    names = [f"x{i}" for i in range(len(values))]
    if node.operator in ("Sum", "Mean"):
        text = " + ".join(names)
        text = f"({text}) / {len(names)}" if node.operator == "Mean" else text
        return on.pointwise(text, values)
    sign = ">" if node.operator == "Max" else "<"
    text = f"real t0 = {names[0]};"
    for i, name in enumerate(names[1:], 1):  # NaN stays
        text += f" real t{i} = t{i - 1} {sign} {name} || isnan(t{i - 1}) ? t{i - 1} : {name};"
    return on.pointwise(f"{text} y0 = t{len(names) - 1};", values)


@operator("Clip")
def clip(on: Lowering, node: Node, x: Value, low: Value | None = None, high: Value | None = None) -> Value:
    """Lower limits, which are attributes up to opset 10 and inputs later."""
    if node.opset < 11:
        low, high = (known(np.array(node.get(name), x.dtype)) if node.has(name) else None for name in ("min", "max"))
    values, text, last = [x], "", "x0"
    for limit, sign in ((low, "<"), (high, ">")):
        if limit is not None and not _is_no_limit(limit):
            operand, result = f"x{len(values)}", f"t{len(values)}"
            text += f"real {result} = {last} {sign} {operand} ? {operand} : {last}; "
            values.append(limit)
            last = result
    return x if len(values) == 1 else on.pointwise(f"{text}y0 = {last};", values)


def _is_no_limit(limit: Value) -> bool:
    return limit.array is not None and is_real(limit) and math.isinf(float(limit.array.reshape(-1)[0]))


@operator("Gelu")
def gelu(on: Lowering, node: Node, x: Value) -> Value:
    """Lower the Gaussian error linear unit (Hendrycks and Gimpel 2016)."""
    if node.get("approximate", "none") == "tanh":
        scale = repr(math.sqrt(2 / math.pi))
        return on.pointwise(f"0.5 * x0 * (1 + tanh({scale} * (x0 + 0.044715 * x0 * x0 * x0)))", [x])
    return on.pointwise("0.5 * x0 * (1 + erf(x0 * M_SQRT1_2))", [x])


@operator("Where")
def where(on: Lowering, node: Node, condition: Value, a: Value, b: Value) -> Value:
    """Lower a choice between two tensors."""
    return on.pointwise("x0 != 0 ? x1 : x2", [condition, a, b], a.dtype, on.widest([a, b]))


@operator("Identity")
def identity(on: Lowering, node: Node, x: Value) -> Value:
    """Return the same value."""
    return x


@operator("Dropout")
def dropout(
    on: Lowering, node: Node, x: Value, ratio: Value | None = None, training: Value | None = None
) -> tuple[Value | None, ...]:
    """Lower dropout for inference, which changes nothing."""
    if training is not None:
        node.expect(training.array is not None, "a training_mode that is no constant")
        node.expect(not on.number(training), "training")
    if not node.wants(1):
        return x, None
    on.budget.expect("bytes", x.size, node)
    return x, known(np.ones(x.shape, bool))


@operator("Cast", "CastLike")
def cast(on: Lowering, node: Node, x: Value, like: Value | None = None) -> Value:
    """Lower a conversion: to real numbers, whole numbers or truth values."""
    target = like.dtype if like is not None else helper.tensor_dtype_to_np_dtype(node.get("to")).name
    return converted(on, node, x, target)


def converted(on: Lowering, node: Node, x: Value, target: str) -> Value:
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
        return on.pointwise("x0 != 0", [x], "bool")
    carrier = carrier_of(target, on.has_fp64)
    text = f"(fabs(x0) < INFINITY ? trunc(x0) : {NOT_FINITE.get(target, 0.0)!r})" if is_real(x) else "x0"
    if target in BITS and BITS[target] < 32 and x.dtype != "bool":
        text = wrapped(target, text)
    compute = max((on.carrier(x), carrier), key=("float16", "float32", "float64").index)
    return on.pointwise(text, [x], target, compute)
