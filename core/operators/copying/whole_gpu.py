"""Copies on GPUs that are several boxes and one launch: tensors side by side, a tensor with something around it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from clgraft.core.operators.copying.concat import ConcatProblem
from clgraft.core.operators.copying.moves_gpu import (
    AXES,
    BOX,
    DIVISOR,
    GROUP,
    SMALL,
    divided,
    groups,
    kernel,
    pack,
    real,
    unit_for,
)
from clgraft.core.operators.copying.padding import PadProblem
from clgraft.core.operators.copying.slicing import SliceProblem
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.launches import Accumulate, Buffer, Constant, Launch, Scalar
from clgraft.core.planning.structs import Struct
from clgraft.core.problem import SMALL as SIXTEEN_BITS

PAIR = 2  # elements of a row that a unit of padding has in 16 bits, where rows have a multiple of it
MOST_PARTS = 8  # tensors that one launch joins
MODES = ("constant", "edge", "reflect")  # the kernel's MODE
PART = Struct("Part", ("first_group", "count", "begin", *(f"{name}1" for name in DIVISOR)))


def whole_launches(problem: Any, planner: Planner) -> tuple[Launch, ...] | None:
    """Return the launches of problems whose boxes one launch copies together; None for all others."""
    if any(argument.size >= SMALL for argument in problem.arguments()):
        return None
    if isinstance(problem, ConcatProblem) and problem.direction == "forward":
        return _join(problem, planner)
    if isinstance(problem, PadProblem) and problem.direction == "forward":
        return _pad(planner, problem.mode, problem.shape, problem.before, problem.behind, ("x", "y"), problem.dtype)
    if isinstance(problem, SliceProblem) and problem.direction == "backward" and set(problem.step) <= {1}:
        behind = [i - b - o for i, b, o in zip(problem.in_shape, problem.begin, problem.out_shape)]
        names = ("dy", "dx")
        return _pad(planner, "constant", problem.out_shape, problem.begin, behind, names, problem.dtype)
    return None


def _join(problem: ConcatProblem, planner: Planner) -> tuple[Launch, ...]:
    """Plan the parts of a concatenation, several in one launch."""
    pitch, begin = sum(problem.extents) * problem.inner, 0
    parts = []
    for name, extent in zip(problem.names[1], problem.extents):
        if extent * problem.inner * problem.outer:
            parts.append((name, extent * problem.inner, begin))
        begin += extent * problem.inner
    lengths = [number for _, *numbers in parts for number in numbers]
    unit = unit_for(problem.dtype, (pitch, *lengths))
    found = []
    for start in range(0, len(parts), MOST_PARTS):
        bound: list[Any] = []
        started = 0
        chunk = parts[start : start + MOST_PARTS]
        for name, length, place in chunk:
            units = length // unit
            fields = {"first_group": started, "count": units * problem.outer, "begin": place, **divided(1, units)}
            bound += [Buffer(name), pack(PART, fields)]
            started += groups(units * problem.outer, unit, problem.dtype)
        chosen = kernel(planner, "join_parts", unit, problem.dtype, PART, PARTS=len(chunk))
        bound += [Buffer("y"), Accumulate("y"), Constant(np.int32(pitch))]
        found.append(Launch(chosen, (started * GROUP,), (GROUP,), tuple(bound), ("y",)))
    return tuple(found)


def _pad(
    planner: Planner,
    mode: str,
    shape: Sequence[int],
    before: Sequence[int],
    behind: Sequence[int],
    names: tuple[str, str],
    dtype: str,
) -> tuple[Launch, ...] | None:
    """Plan a tensor with something around it; None for an empty one, and for too many axes."""
    axes: list[tuple[int, int, int]] = []  # size, before, behind: neighbours without anything around them are one
    for size, b, e in zip(shape, before, behind):
        if axes and not (b or e or axes[-1][1] or axes[-1][2]):
            axes[-1] = (axes[-1][0] * size, 0, 0)
        else:
            axes.append((size, b, e))
    axes = axes or [(1, 0, 0)]
    if not math.prod(shape) or len(axes) > AXES:
        return None
    fields: dict[str, int] = {}
    step = 1
    for axis, (size, b, e) in reversed(list(enumerate(axes))):
        fields |= {**divided(axis, size + b + e), f"before{axis}": b, f"inside{axis}": size, f"x{axis}": step}
        step *= size
    row = sum(axes[-1])
    unit = PAIR if dtype in SIXTEEN_BITS and row % PAIR == 0 else 1
    fields |= divided(len(axes) - 1, row // unit)
    count = math.prod(size + b + e for size, b, e in axes) // unit
    chosen = kernel(planner, "pad_rows", unit, dtype, BOX, AXES=len(axes), MODE=MODES.index(mode))
    bound = (
        *(Buffer(names[0]), Buffer(names[1]), Accumulate(names[1]), Constant(np.uint32(count)), pack(BOX, fields)),
        *((Scalar("value", real(dtype)),) if mode == "constant" else ()),
    )
    return (Launch(chosen, (groups(count, unit, dtype) * GROUP,), (GROUP,), bound, (names[1],)),)
