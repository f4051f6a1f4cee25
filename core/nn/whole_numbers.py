"""Whole numbers in arithmetic of real ones, as formulas: truncated, rounded, and within the range of a type as in C."""

from __future__ import annotations

# what NaN and infinity become, as in C on x86; 0 in other whole numbers
NOT_FINITE = {"int32": -(2.0**31), "int64": -(2.0**63), "uint64": 2.0**63}
BITS = {"int8": 8, "uint8": 8, "int16": 16, "uint16": 16, "int32": 32, "uint32": 32}
IS_TRUE = "x0 != 0"


def truncated(text: str) -> str:
    """Return a value without its fraction."""
    return f"trunc({text})"


def rounded(text: str) -> str:
    """Return the nearest whole number, of halves the even one."""
    return f"rint({text})"


def wrapped(dtype: str, text: str) -> str:
    """Return a value modulo the range of a type of whole numbers."""
    if dtype not in BITS:
        return text
    span = float(2 ** BITS[dtype])
    low = 0.0 if dtype.startswith("u") else span / 2
    return f"real w = ({text}) + {low!r}; y0 = w - {span!r} * floor(w / {span!r}) - {low!r};"


def converted(dtype: str, *, real: bool, wraps: bool) -> str:
    """Return x0 in a type of whole numbers.

    Parameters
    ----------
    real : bool
        Whether x0 is a real number; else it is a whole one.
    wraps : bool
        Whether it may be out of the range of a type of fewer than 32 bits.
    """
    text = f"(fabs(x0) < INFINITY ? trunc(x0) : {NOT_FINITE.get(dtype, 0.0)!r})" if real else "x0"
    return wrapped(dtype, text) if wraps and BITS.get(dtype, 32) < 32 else text
