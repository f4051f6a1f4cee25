"""Pooling on GPUs in one or two axes: windows with unrolled taps, whose results share what they read."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, prod
from typing import Any

import numpy as np

from clgraft.core.errors import Declined
from clgraft.core.operators.pooling.arguments import WINDOWS, operator_macros, windows_argument
from clgraft.core.operators.pooling.elements import bind, outputs
from clgraft.core.operators.pooling.problem import NORMS, PoolProblem
from clgraft.core.planning.division import divisor_argument
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.kernels import arithmetic_bytes
from clgraft.core.planning.launches import Constant, Launch, Launches, ints
from clgraft.core.problem import SMALL, ceil_div, in_3d, round_up

NAME = "windows_gpu"

FILE = "pooling/windows_gpu.cl"
MOST_TAPS = 49  # taps of a window: they are unrolled
MOST_STRIP = 64  # elements that a work-item reads
COLUMNS = 4  # columns of a work-item, where they are read together
ROWS = 4  # rows of a work-item
UNIT_ITEMS = 1024  # work-items for each compute unit, for which forward's make fewer rows
GROUP = 128
MOST_CELLS_W = 64  # cells in the width of a tile of dx
TILE_ELEMENTS = 2048  # elements of a tile of dx, about; half as many, if it has several planes
SMALL_TILE_ELEMENTS = 4096  # in 16 bits
MOST_NOTED = 4  # maxima of float32 that a work-item notes, which compares elements in registers of 32 bits
NOTING = 2  # what a work-item does for the windows that it notes, in rows that it reads
LARGEST = 2**31 - 1


@dataclass(frozen=True)
class _Axis:
    """Rows or columns: sizes of the input and of the result, taps, stride, padding in front."""

    size: int
    results: int
    taps: int
    stride: int
    pad: int

    @property
    def cells(self) -> int:
        """Number of strides that hold the input."""
        return ceil_div(self.size, self.stride)

    @property
    def before(self) -> int:
        """Number of windows that begin in cells before one, and may hold elements of it."""
        return max(0, (self.taps - 1 - self.pad) // self.stride)

    @property
    def after(self) -> int:
        """Number of windows that are counted after a cell, and may hold elements of it."""
        return (self.stride - 1 + self.pad) // self.stride

    @property
    def apart(self) -> bool:
        """Whether each window is a part of its cell."""
        return self.taps <= self.stride and self.pad == 0

    def extent(self, windows: int) -> int:
        """Return the elements that neighbouring windows meet."""
        return (windows - 1) * self.stride + self.taps

    def reach(self, name: str, windows: int, first: int, last: int) -> dict[str, int]:
        """Return how far work-items reach beyond both ends, with so many windows from `first` to `last` on."""
        under, extent = self.pad - first * self.stride, self.extent(windows)
        over = last * self.stride - self.pad + extent - self.size
        return {f"UNDER_{name}": max(0, min(under, extent)), f"OVER_{name}": max(0, min(over, extent))}


def plan(problem: PoolProblem, planner: Planner) -> Launches:
    """Plan one launch."""
    device = planner.device
    if device.is_cpu:
        raise Declined("is for GPUs")
    if problem.ndim > 2 or prod(problem.kernel) > MOST_TAPS:
        raise Declined(f"is for one or two axes, and unrolls at most {MOST_TAPS} taps")
    if device.max_work_group_size < GROUP:
        raise Declined(f"needs work-groups of {GROUP}")
    forward = problem.direction.startswith("forward")
    if not forward and problem.operator in NORMS:
        raise Declined("has no gradients of norms")
    numbers = (
        *(in_3d(numbers, 1)[1:] for numbers in (problem.in_size, problem.out_size, problem.kernel, problem.stride)),
        in_3d(problem.pad_begin, 0)[1:],
    )
    rows, columns = (_Axis(*axis) for axis in zip(*numbers))
    planes = problem.batch * problem.channels
    elements = max(rows.size * columns.size, rows.results * columns.results)
    padded = prod(axis.size + axis.pad + axis.taps for axis in (rows, columns))
    if padded > LARGEST or planes * elements > LARGEST:
        raise Declined("counts elements in 32 bits")
    macros: dict[str, Any] = {**operator_macros(problem), **WINDOWS.defines(), "GROUP": GROUP}
    for name, axis in (("H", rows), ("W", columns)):
        macros |= {f"K{name}": axis.taps, f"S{name}": axis.stride, f"P{name}": axis.pad}
    if problem.direction.endswith("_argmax"):
        macros["ARGMAX"] = 1
    if forward:
        return _forward(problem, planner, macros, rows, columns)
    if rows.apart and columns.apart and rows.stride * columns.stride <= MOST_STRIP // COLUMNS:
        return _apart(problem, planner, macros, rows, columns)
    return _backward(problem, planner, macros, rows, columns)


def _together(problem: PoolProblem) -> int:
    """Return the most elements that a work-item reads at once."""
    return 1 if problem.dtype == "float64" else COLUMNS


def _one_by_one(problem: PoolProblem, columns: _Axis) -> int:
    """Return a work-item's columns where it reads elements one by one: neighbours have neighbours in memory."""
    return max(1, (2 if problem.dtype in SMALL else 1) // columns.stride)


def _gradient_columns(problem: PoolProblem, columns: _Axis) -> dict[str, int]:
    """Return the columns of a work-item of backward, and how many it reads at once, as macros."""
    wide = _one_by_one(problem, columns)
    if COLUMNS % columns.stride == 0 and gcd(_together(problem), columns.size) > 1:
        wide = COLUMNS // columns.stride
    unit_x = gcd(_together(problem), columns.size, wide * columns.stride)
    return {"ITEM_COLUMNS": wide, "UNIT_X": unit_x, "UNIT_Y": gcd(_together(problem), columns.results, wide)}


def _launch(
    problem: PoolProblem, planner: Planner, name: str, macros: dict[str, Any], groups: int, sizes: tuple[Any, ...]
) -> Launches:
    """Return the launch of so many work-groups."""
    if groups * GROUP > LARGEST:
        raise Declined(f"{groups} work-groups are too many")
    kernel = planner.kernel(FILE, name, macros, problem.dtype)
    arguments = (*bind(problem), windows_argument(problem), *sizes)
    return Launches((Launch(kernel, (groups * GROUP,), (GROUP,), arguments, outputs(problem)),))


def _blocks(
    problem: PoolProblem,
    planner: Planner,
    name: str,
    macros: dict[str, Any],
    rows: tuple[_Axis, int, int],
    columns: tuple[_Axis, int, int],
) -> Launches:
    """Return the launch of work-items with blocks of a plane: axes, how many each has, and how many there are."""
    (h, high, lines), (w, wide, width) = rows, columns
    strips, across = ceil_div(lines, high), ceil_div(width, wide)
    count = problem.batch * problem.channels * strips * across
    macros |= {**h.reach("H", high, 0, (strips - 1) * high), **w.reach("W", wide, 0, (across - 1) * wide)}
    sizes = (Constant(np.uint32(count)), *ints(strips, across), divisor_argument(strips), divisor_argument(across))
    return _launch(problem, planner, name, macros, ceil_div(count, GROUP), sizes)


def _forward(problem: PoolProblem, planner: Planner, macros: dict[str, Any], rows: _Axis, columns: _Axis) -> Launches:
    wide = _one_by_one(problem, columns)
    if gcd(_together(problem), columns.size, COLUMNS * columns.stride) > 1:
        wide = COLUMNS
    while wide > 1 and (wide > columns.results or rows.taps * columns.extent(wide) > MOST_STRIP):
        wide //= 2
    high, planes = ROWS, problem.batch * problem.channels
    while high > 1 and (
        high > rows.results
        or rows.extent(high) * columns.extent(wide) > MOST_STRIP
        or planes * ceil_div(rows.results, high) * ceil_div(columns.results, wide)
        < planner.device.compute_units * UNIT_ITEMS
    ):
        high //= 2
    macros |= {"ITEM_ROWS": high, "ITEM_COLUMNS": wide}
    macros["UNIT_X"] = gcd(_together(problem), columns.size, wide * columns.stride)
    macros["UNIT_Y"] = gcd(_together(problem), columns.results, wide)
    blocks = (rows, high, rows.results), (columns, wide, columns.results)
    return _blocks(problem, planner, "pool_windows_forward", macros, *blocks)


def _apart(problem: PoolProblem, planner: Planner, macros: dict[str, Any], rows: _Axis, columns: _Axis) -> Launches:
    """Plan the gradient where windows share nothing."""
    macros |= _gradient_columns(problem, columns)
    wide = macros["ITEM_COLUMNS"]
    macros["NOTED_ROWS"] = noted = 2 if 2 * rows.stride * columns.stride * wide <= MOST_STRIP else 1
    blocks = (rows, noted, rows.cells), (columns, wide, columns.cells)
    return _blocks(problem, planner, "pool_windows_apart", macros, *blocks)


def _backward(problem: PoolProblem, planner: Planner, macros: dict[str, Any], rows: _Axis, columns: _Axis) -> Launches:
    """Plan the gradient by tiles, which note their windows in local memory."""
    macros |= _gradient_columns(problem, columns)
    item = macros["ITEM_COLUMNS"]
    planes, cell = problem.batch * problem.channels, rows.stride * columns.stride
    elements = SMALL_TILE_ELEMENTS if problem.dtype in SMALL else TILE_ELEMENTS
    tiles_w = ceil_div(columns.cells, MOST_CELLS_W)
    wide = round_up(ceil_div(columns.cells, tiles_w), COLUMNS if tiles_w > 1 else item)
    high = max(1, min(rows.cells, elements // (wide * cell)))
    high = ceil_div(rows.cells, ceil_div(rows.cells, high))
    cells = min(high, ceil_div(ROWS, rows.stride))
    high = round_up(high, cells)
    tiles_h = ceil_div(rows.cells, high)
    tile_planes = 1
    if tiles_w == tiles_h == 1:
        tile_planes = max(1, min(planes, elements // 2 // (high * wide * cell)))
    left = round_up(columns.before, item)
    windows_w = round_up(left + wide + round_up(columns.after, item), item)
    # where a tile has all columns of a plane, nothing is noted for those that no window has
    blocks = min(ceil_div(columns.results, item), (windows_w - left) // item) if tiles_w == 1 else windows_w // item

    def lines(noted: int) -> int:
        """Return how many times so many rows of windows a tile notes."""
        return ceil_div(rows.before + high + rows.after, noted)

    reads_x = problem.operator == "max" and not problem.direction.endswith("_argmax")

    def effort(noted: int) -> int:
        """Return the rows that a work-item reads for them, one after the other, and what comes with each turn."""
        turns = ceil_div(tile_planes * lines(noted) * blocks, GROUP)
        return turns * ((rows.extent(noted) if reads_x else noted) + NOTING)

    def fits(noted: int) -> bool:
        """Return whether a work-item has registers for them."""
        if not reads_x or noted == 1:
            return True
        few = noted <= 2 and (problem.dtype in SMALL or noted * item <= MOST_NOTED)
        return few and rows.extent(noted) * columns.extent(item) <= MOST_STRIP

    noted = min(filter(fits, (4, 2, 1)), key=effort)
    held = tile_planes * lines(noted) * noted * windows_w * (arithmetic_bytes(problem.dtype) + 1)
    if held > planner.device.local_memory:
        raise Declined(f"needs {held} bytes of local memory")
    last = (tiles_h - 1) * high - rows.before + (lines(noted) - 1) * noted
    macros |= rows.reach("H", noted, -rows.before, last)
    macros |= columns.reach("W", item, 0, ((tiles_w - 1) * wide - left if tiles_w > 1 else 0) + (blocks - 1) * item)
    macros |= {"TILE_PLANES": tile_planes, "CELLS_H": high, "CELLS_W": wide, "TILES_W": tiles_w}
    macros |= {"ITEM_CELLS": cells, "NOTED_ROWS": noted, "NOTED_LINES": lines(noted), "NOTED_BLOCKS": blocks}
    macros |= {"WINDOWS_W": windows_w, "BEFORE_H": rows.before, "BEFORE_W": columns.before}
    macros |= {"AFTER_H": rows.after, "AFTER_W": columns.after}
    groups = ceil_div(planes, tile_planes) * tiles_h * tiles_w
    sizes = (Constant(np.uint32(planes)), *ints(tiles_h), divisor_argument(tiles_h))
    return _launch(problem, planner, "pool_windows_backward", macros, groups, sizes)
