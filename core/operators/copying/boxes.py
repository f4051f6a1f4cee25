"""From a box of elements to one launch that copies or fills it: axes are joined, rows are shared out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from clgraft.core.operators.copying.moves_gpu import box_launch
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.launches import Accumulate, Buffer, Constant, Launch, Scalar
from clgraft.core.planning.structs import Struct
from clgraft.core.problem import SMALL, ceil_div

AXES = 6  # axes that the kernels count, including the row
GROUP = 256  # work-items of a GPU's work-group
ELEMENTS = 4  # elements of a GPU's work-item
SIDE = 32  # rows and columns of the tiles that a GPU transposes
ITEMS_PER_UNIT = 4  # work-items per core, so that none waits long for the last one
FEWEST_ELEMENTS = 8192  # elements of a work-item at least
STEPPED_BOX = Struct(
    "SteppedBox",
    (
        *("x_begin", "y_begin", "length", "size1", "size2", "size3", "size4"),
        *(f"{tensor}{axis}" for tensor in "xy" for axis in range(AXES)),
    ),
    kind="long",
)
SHORT = 8  # a row below that is not worth finding: the axis outside of it becomes the row


@dataclass(frozen=True)
class Box:
    """What is copied.

    Attributes
    ----------
    shape : tuple of int
    x_steps, y_steps : tuple of int
        Elements per step of each axis, 0 where x is repeated.
    x_begin, y_begin : int
        The first element.
    x, y : str
        The arguments' names; an empty x fills the box with the scalar ``value``.
    adds : bool
        Add to y whatever the run says, because an earlier box has written it.
    """

    shape: tuple[int, ...]
    x_steps: tuple[int, ...]
    y_steps: tuple[int, ...]
    x_begin: int
    y_begin: int
    x: str
    y: str
    adds: bool = False


def steps(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the elements per step of each axis of a contiguous array."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def offset(begin: Sequence[int], shape: Sequence[int]) -> int:
    """Return the place of an index in a contiguous array."""
    return sum(b * s for b, s in zip(begin, steps(shape)))


def join_axes(box: Box) -> list[tuple[int, int, int]]:
    """Return (size, x step, y step) of each axis, neighbours joined where both walk them as one."""
    axes: list[tuple[int, int, int]] = []
    for size, x, y in zip(box.shape, box.x_steps, box.y_steps):
        if size == 1:
            continue
        if axes and axes[-1][1] == size * x and axes[-1][2] == size * y:
            axes[-1] = (axes[-1][0] * size, x, y)
        else:
            axes.append((size, x, y))
    return axes or [(1, 1, 1)]


def launches(planner: Planner, box: Box, dtype: str) -> tuple[Launch, ...]:
    """Return the launches that copy a box; none if it is empty, several only if it has very many axes.

    Parameters
    ----------
    planner : Planner
    box : Box
    dtype : str
    """
    if not math.prod(box.shape):
        return ()
    axes = join_axes(box)
    doubled = planner.device.is_cpu and _take_doubled(box, axes)
    if planner.device.is_cpu and not doubled and len(axes) > 1 and axes[-1][0] < SHORT and axes[-1][0] < axes[-2][0]:
        axes[-2:] = axes[:-3:-1]
    tiled = _put_tiles_last(box, axes, SHORT if planner.device.is_cpu else SIDE // 2)
    if len(axes) > AXES:
        size, x, y = axes[0]
        shape, x_steps, y_steps = zip(*axes[1:])
        inner = [
            Box(shape, x_steps, y_steps, box.x_begin + i * x, box.y_begin + i * y, box.x, box.y, box.adds)
            for i in range(size)
        ]
        return tuple(launch for part in inner for launch in launches(planner, part, dtype))
    if not planner.device.is_cpu and not tiled:
        launch = box_launch(planner, axes, (box.x_begin, box.y_begin), box.x, box.y, box.adds, dtype)
        if launch is not None:
            return (launch,)
    return (_launch(planner, box, axes, dtype, tiled, doubled),)


def _put_tiles_last(box: Box, axes: list[tuple[int, int, int]], least: int) -> bool:
    """Bring the axis that is contiguous in x next to the last, if that is contiguous in y; say whether it is."""
    size, x_step, y_step = axes[-1]
    place = next((i for i, (_, x, _) in enumerate(axes) if x == 1), -1)
    if not box.x or y_step != 1 or x_step == 1 or size < least or place < 0 or axes[place][0] < least:
        return False
    axes.insert(len(axes) - 2, axes.pop(place))
    return True


def _in_pairs(box: Box, axes: Sequence[tuple[int, int, int]]) -> bool:
    """Return whether a tiled box of 16 bits is moved by twos: its distances are even, and tiles are not half empty."""
    *outer, (across, _, y_step), (length, x_step, _) = axes
    distances = (box.x_begin, box.y_begin, y_step, x_step, *(step for _, *both in outer for step in both))
    return min(across, length) > SIDE and not any(number % 2 for number in (across, length, *distances))


def _take_doubled(box: Box, axes: list[tuple[int, int, int]]) -> bool:
    """Take the last axis away where it repeats each element of a row twice; say whether it does."""
    if not box.x or not 1 < len(axes) <= AXES or axes[-1] != (2, 0, 1) or axes[-2][0] < SHORT or axes[-2][1:] != (1, 2):
        return False
    axes.pop()
    return True


def _launch(
    planner: Planner, box: Box, axes: list[tuple[int, int, int]], dtype: str, tiled: bool, doubled: bool
) -> Launch:
    count = math.prod(size for size, _, _ in axes)
    length, x_step, y_step = axes[-1]
    padded = [(1, 0, 0)] * (AXES - len(axes)) + axes
    fields = {"x_begin": box.x_begin, "y_begin": box.y_begin, "length": length}
    fields.update({f"size{axis}": size for axis, (size, _, _) in enumerate(padded) if 0 < axis < AXES - 1})
    for axis, (_, x, y) in enumerate(padded):
        fields.update({f"x{axis}": x, f"y{axis}": y})
    fill = not box.x
    source = () if fill else (Buffer(box.x),)
    real = "float64" if dtype == "float64" else "float32"
    value = (Scalar("value", real),) if fill else ()
    macros: dict[str, Any] = {"FILL": int(fill), **STEPPED_BOX.defines()}
    if planner.device.is_cpu:
        macros["VL"] = max(2, min(16, planner.device.vector_width // (2 if dtype == "float64" else 1)))
        contiguous = y_step == 1 and (fill or x_step == 1) and length > 1
        name = "copy_doubled" if doubled else "copy_rows" if contiguous else "copy_strided"
        rows = count // length
        items = max(1, min(count // FEWEST_ELEMENTS, planner.device.compute_units * ITEMS_PER_UNIT))
        pieces = max(1, items // rows)
        rows_per_item = max(1, rows // items)
        numbers = [np.uint64(rows), np.uint64(pieces), np.uint64(rows_per_item)]
        global_size, local_size = (ceil_div(rows, rows_per_item) * pieces,), (1,)
        if doubled:
            macros["VL"] = min(macros["VL"], 1 << (length.bit_length() - 1))
        if tiled:
            name, across = "copy_tiles", padded[-2][0]
            macros["VL"] = min(macros["VL"], 1 << (min(across, length).bit_length() - 1))
            rows_per_item = max(1, min(ceil_div(across, macros["VL"]), count // items // (length * macros["VL"])))
            numbers[-1] = np.uint64(rows_per_item)
            global_size = (rows // across * ceil_div(across, macros["VL"] * rows_per_item),)
    else:
        macros |= {"GROUP": GROUP, "ELEMENTS": ELEMENTS, "SIDE": SIDE, "LONG": int(count > 2**31)}
        numbers = [np.uint64(count)]
        name, groups = "copy_elements", ceil_div(count, GROUP * ELEMENTS)
        if tiled:
            name, side, across = "copy_turned", SIDE, padded[-2][0]
            if dtype in SMALL and _in_pairs(box, padded):
                name, side = "copy_turned_pairs", 2 * SIDE
            groups = count // (length * across) * ceil_div(length, side) * ceil_div(across, side)
        global_size, local_size = (groups * GROUP,), (GROUP,)
    kernel = planner.kernel("copying/boxes.cl", name, macros, dtype)
    adds = Constant(np.int32(1)) if box.adds else Accumulate(box.y)
    constants = (STEPPED_BOX.pack(fields), *map(Constant, numbers))
    bound = (*source, Buffer(box.y), adds, *constants, *value)
    return Launch(kernel, global_size, local_size, bound, (box.y,))
