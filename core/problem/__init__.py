"""Problems: frozen descriptions of one operator call, their text, and the arithmetic of sizes that they share."""

from clgraft.core.problem.base import (
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
from clgraft.core.problem.dtypes import DTYPE_WORDS, DTYPES, ROUNDING, SMALL, expect_in_numpy, in_float64, in_numpy
from clgraft.core.problem.numbers import ceil_div, reads_as_number, round_up

__all__ = [
    "DTYPES",
    "DTYPE_WORDS",
    "ROUNDING",
    "SMALL",
    "Argument",
    "Gradient",
    "Problem",
    "ceil_div",
    "expect",
    "expect_in_numpy",
    "in_3d",
    "in_float64",
    "in_numpy",
    "kinds",
    "parse",
    "reads_as_number",
    "round_up",
    "sample_argument",
    "shortened",
]
