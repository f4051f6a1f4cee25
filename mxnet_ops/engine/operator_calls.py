"""What is written down of an operator: the problems that it runs, and which array fills which argument."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from clgraft import core

Shape = tuple[int, ...]
Shapes = tuple[list[Shape], list[Shape], list[Shape]]
Place = tuple[int, int]  # an array: its group, and its number there

MIXED = "float16 data and float32 parameters"  # stands where a dtype is expected

# where an array of a call stands: MXNet's own tags, and the operator's own arrays. They are numbered as in C (calls.h),
# and stated here too because what needs no MXNet has no C
IN, OUT, IN_GRAD, OUT_GRAD, AUX, STATE = GROUPS = range(6)


def data_dtype(dtype: str) -> str:
    """Return the dtype of an operator's data."""
    return "float16" if dtype == MIXED else dtype


def parameter_dtype(dtype: str) -> str:
    """Return the dtype of what may be float32 where data are float16 (see `Operator.single`)."""
    return "float32" if dtype == MIXED else dtype


class OperatorCall(NamedTuple):
    """One problem of an operator; for each of its arguments the array that fills it, or None."""

    problem: core.Problem
    arrays: tuple[Place | None, ...]
    scalars: tuple[float, ...] = ()


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


class OperatorCalls(NamedTuple):
    """What an operator does for given shapes.

    Parameters
    ----------
    forward, backward : mapping
        The calls when training and when not. The core leaves out an output whose write request is null.
    state : tuple of numpy arrays' (shape, dtype, fill)
        Arrays that live from forward to backward; `fill` is their first content. Keys of random numbers come first.
    zeros : tuple of (int, int)
        Input gradients that are zero: (place, bytes).
    """

    forward: Mapping[bool, tuple[OperatorCall, ...]]
    backward: Mapping[bool, tuple[OperatorCall, ...]]
    state: tuple[tuple[Shape, str, float], ...] = ()
    zeros: tuple[tuple[int, int], ...] = ()


NO_CALLS = OperatorCalls({True: (), False: ()}, {True: (), False: ()})
