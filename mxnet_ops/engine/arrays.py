"""What an operator's arrays are called: MXNet's groups of them, their shapes and dtypes, random numbers."""

from __future__ import annotations

from typing import NamedTuple

Shape = tuple[int, ...]
Shapes = tuple[list[Shape], list[Shape], list[Shape]]
Place = tuple[int, int]  # an array: its group, and its number there
Array = tuple[Shape, str]  # its dtype comes last

MIXED = "float16 data and float32 parameters"  # stands where a dtype is expected

# where an array stands: MXNet's own tags, and the operator's own arrays. They are numbered as in C (calls.h),
# and stated here too because what needs no MXNet has no C
IN, OUT, IN_GRAD, OUT_GRAD, AUX, STATE = GROUPS = range(6)


def data_dtype(dtype: str) -> str:
    """Return the dtype of an operator's data."""
    return "float16" if dtype == MIXED else dtype


def parameter_dtype(dtype: str) -> str:
    """Return the dtype of what may be float32 where data are float16 (see `Operator.single`)."""
    return "float32" if dtype == MIXED else dtype


class Draw(NamedTuple):
    """Random numbers of an operator: the 4 words of its key are new before each forward that draws.

    Parameters
    ----------
    seed : int or None
        The operator's own; None follows ``mx.random.seed``.
    always : bool
        Whether a forward that does not train draws as well.
    """

    seed: int | None
    always: bool
