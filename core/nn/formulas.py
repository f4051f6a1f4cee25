"""Formulas as text: other names for what they read, and the programs that they become.

A formula is an expression. Declarations that it needs stand in front of it: ``real s = exp(x); s / (1 + s)``.
"""

from __future__ import annotations

import math

from clgraft.core.operators.pointwise.expression import IDENTIFIER
from clgraft.core.operators.pointwise.expression import renamed as renamed  # adapters take it from here

# OpenCL's functions of a, b and c that few other libraries have, by those that all have
BY_OTHERS = {
    **{"log1p": "log(1 + a)", "expm1": "exp(a) - 1", "rsqrt": "1 / sqrt(a)", "exp2": "pow(2, a)"},
    **{"exp10": "pow(10, a)", "log2": "log(a) / 0.6931471805599453", "log10": "log(a) / 2.302585092994046"},
    **{"trunc": "sign(a) * floor(fabs(a))", "round": "sign(a) * floor(fabs(a) + 0.5)", "erfc": "1 - erf(a)"},
    **{"fdim": "fmax(a - b, 0)", "hypot": "sqrt(a * a + b * b)", "copysign": "b < 0 ? -fabs(a) : fabs(a)"},
    **{"step": "b < a ? 0 : 1", "clamp": "fmin(fmax(a, b), c)", "mix": "a + (b - a) * c"},
    **{"fma": "a * b + c", "mad": "a * b + c"},
}


def names_in(text: str) -> frozenset[str]:
    """Return the names in a formula."""
    return frozenset(IDENTIFIER.findall(text))


def split(text: str) -> tuple[str, str]:
    """Return a formula's declarations, with a space after them, and its expression."""
    before, mark, value = text.rpartition("; ")
    return before + mark, value


def assigned(target: str, text: str) -> str:
    """Return the statements that assign a formula's value."""
    before, value = split(text)
    return f"{before}{target} = {value};"


def number(value: float) -> str:
    """Return a number as text of a formula."""
    value = float(value)
    if math.isnan(value):
        return "NAN"
    if math.isinf(value):
        return "INFINITY" if value > 0 else "(-INFINITY)"
    return repr(value) if not math.copysign(1, value) < 0 else f"({value!r})"
