"""Copies on GPUs in units of several elements: what all of them share, and the copy of a box."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from clgraft.core.planning.division import packed_divisor
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.kernels import arithmetic_bytes
from clgraft.core.planning.launches import Accumulate, Buffer, Constant, Launch, Scalar
from clgraft.core.planning.structs import Struct
from clgraft.core.problem import SMALL as SIXTEEN_BITS
from clgraft.core.problem import ceil_div

AXES = 6  # axes that the kernels split a place into
GROUP = 128  # work-items of a work-group
# elements that may move at once, and the units of so many that a work-item moves, by the bytes of an element: what an
# H200 copies fastest (benchmarks/operators_gpu.py); with 2 bytes, what moves as many bytes
UNITS = {2: {8: 2, 4: 4, 2: 4, 1: 4}, 4: {4: 2, 1: 4}, 8: {4: 2, 1: 4}}
SMALL = 2**30  # elements of a tensor that the kernels count
FILE = "copying/moves_gpu.cl"

DIVISOR = ("size", "factor", "shift")
BOX = Struct("Box", tuple(f"{name}{axis}" for name in (*DIVISOR, "x", "y", "before", "inside") for axis in range(AXES)))


def pack(struct: Struct, values: dict[str, int]) -> Any:
    """Pack a struct whose fields are 0 where nothing is said."""
    return struct.pack({**dict.fromkeys(struct.counts, 0), **values})


def divided(axis: int, size: int) -> dict[str, int]:
    """Return the fields that split off an axis; see kernels/common/divide.cl."""
    shift, factor = divmod(packed_divisor(size), 2**32)
    return {f"size{axis}": size, f"factor{axis}": (factor ^ 2**31) - 2**31, f"shift{axis}": shift}


def units_of(dtype: str) -> dict[int, int]:
    """Return the elements that may move at once, most first, with the units of a work-item."""
    return UNITS[2 if dtype in SIXTEEN_BITS else arithmetic_bytes(dtype)]


def unit_for(dtype: str, distances: Iterable[int]) -> int:
    """Return how many elements move at once where all sizes and distances are these."""
    together = math.gcd(*distances)
    return next(unit for unit in units_of(dtype) if together % unit == 0)


def groups(count: int, unit: int, dtype: str) -> int:
    """Return the work-groups that move so many units."""
    return ceil_div(count, GROUP * units_of(dtype)[unit])


def kernel(planner: Planner, name: str, unit: int, dtype: str, struct: Struct, **macros: int) -> Any:
    """Return a kernel of the file, for units of so many elements."""
    defines = {**struct.defines(), "UNIT": unit, "ELEMENTS": units_of(dtype)[unit], "GROUP": GROUP, **macros}
    return planner.kernel(FILE, name, defines, dtype)


def real(dtype: str) -> str:
    """Return the dtype of a scalar."""
    return "float64" if dtype == "float64" else "float32"


def box_launch(
    planner: Planner,
    axes: Sequence[tuple[int, int, int]],
    begins: tuple[int, int],
    x: str,
    y: str,
    adds: bool,
    dtype: str,
) -> Launch | None:
    """Return the launch that copies or fills a box, or None if it is too large for 32-bit places.

    Parameters
    ----------
    planner : Planner
    axes : sequence of (size, x step, y step)
        At most `AXES`, outermost first.
    begins : (x begin, y begin)
    x, y : str
        An empty x fills the box.
    adds : bool
        Add to y whatever the run says.
    dtype : str
    """
    reach = [sum((size - 1) * abs(axis_steps[i]) for size, *axis_steps in axes) for i in (0, 1)]
    count = math.prod(size for size, _, _ in axes)
    if max(*reach, count) >= SMALL:
        return None
    *outer, (length, x_step, y_step) = axes
    steps = [step for _, *both in outer for step in both] + list(begins)
    splat = bool(x) and x_step == 0  # neighbours in y are one element of x, wherever that lies
    together = y_step == 1 and (x_step == 1 or splat or not x)
    unit = unit_for(dtype, (length, *steps[splat :: 1 + splat])) if together else 1
    units = [*outer, (length // unit, x_step * unit, y_step * unit)]
    fields: dict[str, int] = {}
    for axis, (size, x_move, y_move) in enumerate(units):
        fields |= {**divided(axis, size), f"x{axis}": x_move, f"y{axis}": y_move}
    chosen = kernel(
        planner, "move_box" if x else "fill_box", unit, dtype, BOX, AXES=len(axes), FILL=int(not x), SPLAT=int(splat)
    )
    begin = tuple(np.uint64(place) for place in (begins if x else begins[1:]))
    bound = (
        *((Buffer(x),) if x else ()),
        *(Buffer(y), Constant(np.int32(1)) if adds else Accumulate(y)),
        *(Constant(place) for place in begin),
        *(Constant(np.uint32(count // unit)), pack(BOX, fields)),
        *(() if x else (Scalar("value", real(dtype)),)),
    )
    return Launch(chosen, (groups(count // unit, unit, dtype) * GROUP,), (GROUP,), bound, (y,))
