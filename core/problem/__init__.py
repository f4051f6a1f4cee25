"""Problems: frozen descriptions of one operator call, their text, and the arithmetic of sizes that they share."""

from clgraft.core.problem.base import (
    DTYPES,
    Argument,
    Gradient,
    Problem,
    expect,
    in_3d,
    kinds,
    parse,
    sample_argument,
    shortened,
)
from clgraft.core.problem.numbers import ceil_div, reads_as_number, round_up
from clgraft.core.problem.text import DTYPE_WORDS

__all__ = [
    "DTYPES",
    "DTYPE_WORDS",
    "Argument",
    "Gradient",
    "Problem",
    "ceil_div",
    "expect",
    "in_3d",
    "kinds",
    "parse",
    "reads_as_number",
    "round_up",
    "sample_argument",
    "shortened",
]
