"""What is written down of an operator: the problems that it runs, and which array fills which argument."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from clgraft import core

Shape = tuple[int, ...]
Shapes = tuple[list[Shape], list[Shape], list[Shape]]

# where an array of a call stands: MXNet's own tags, and the operator's own arrays. They are numbered as in C (calls.h),
# and stated here too because what needs no MXNet has no C
IN, OUT, IN_GRAD, OUT_GRAD, AUX, STATE = GROUPS = range(6)


class OperatorCall(NamedTuple):
    """One problem of an operator; for each of its arguments the array that fills it, as (group, place), or None."""

    problem: core.Problem
    arrays: tuple[tuple[int, int] | None, ...]
    scalars: tuple[float, ...] = ()


class Draw(NamedTuple):
    """Random numbers of an operator: the array of the state whose 4 words get a new key before a forward that draws.

    Parameters
    ----------
    place : int
        In the state.
    seed : int or None
        The operator's own; None follows ``mx.random.seed``.
    always : bool
        Whether a forward that does not train draws as well.
    """

    place: int
    seed: int | None
    always: bool


class OperatorCalls(NamedTuple):
    """What an operator does for given shapes.

    Parameters
    ----------
    forward, backward : mapping
        The calls when training and when not. The core leaves out an output whose write request is null.
    state : tuple of numpy arrays' (shape, dtype, fill)
        Arrays that live from forward to backward; `fill` is their first content.
    zeros : tuple of (int, int)
        Input gradients that are zero: (place, bytes).
    draw : Draw, optional
        Of an operator with random numbers.
    """

    forward: Mapping[bool, tuple[OperatorCall, ...]]
    backward: Mapping[bool, tuple[OperatorCall, ...]]
    state: tuple[tuple[Shape, str, float], ...] = ()
    zeros: tuple[tuple[int, int], ...] = ()
    draw: Draw | None = None
