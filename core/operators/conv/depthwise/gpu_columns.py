"""Depthwise convolution on GPUs: a work-item per block of rows and columns, with all sums in registers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from clgraft.core.errors import Declined
from clgraft.core.operators.conv.arguments import GRID, PLANE_SUMS
from clgraft.core.operators.conv.depthwise.axes import (
    PlaneAxis,
    grid_argument,
    strips_of,
    sum_of_splits,
    sums_argument,
)
from clgraft.core.operators.conv.problem import ConvProblem
from clgraft.core.planning.division import divisor_argument
from clgraft.core.planning.epilogue import Epilogue, epilogue_arguments, epilogue_defines
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.kernels import MAD_ENABLE, arithmetic_bytes
from clgraft.core.planning.launches import Accumulate, Buffer, Constant, Launch, Launches, ints
from clgraft.core.planning.workspace import WorkspaceLayout
from clgraft.core.problem import SMALL, ceil_div, round_up

FILE = "conv/depthwise/gpu_columns.cl"
SUMS_KERNEL, PHASES_KERNEL, FILTER_KERNEL = 1, 2, 3  # the file's MAKES: what a program holds
GROUP = 128
MOST_TAPS = 49
MOST_STRIDE = 4
MOST_REACH = 48  # distance of the first and the last tap of a row: a work-item names all elements of its lines
MOST_ITEMS = 2**31
NARROW, LOW = 8, 16  # columns and rows of planes that get other blocks
WIDE = 8  # columns of a block in 16 bits, where it is memory that binds
GROUPS_PER_UNIT = 16  # work-groups that each compute unit should get at least


def reason_against(problem: ConvProblem, planner: Planner, height: PlaneAxis, width: PlaneAxis) -> str:
    """Return why the kernels do not serve a problem; empty if they do."""
    taps = height.taps * width.taps
    if taps > MOST_TAPS:
        return f"{taps} taps are more than {MOST_TAPS}"
    if not min(height.source, width.source, height.size, width.size):
        return "there are no elements to read"
    if max(height.stride, width.stride) > MOST_STRIDE:
        return f"stride {problem.stride} is more than {MOST_STRIDE}"
    if width.reach > MOST_REACH:
        return f"the taps of a row reach over {width.reach} elements, more than {MOST_REACH}"
    dilated, strided = any(a.reach >= a.taps for a in (height, width)), max(height.stride, width.stride) > 1
    if problem.direction == "backward_data" and dilated and strided:
        return f"serves no dilation {problem.dilate} with stride {problem.stride}"
    shared = taps * GROUP * arithmetic_bytes(problem.dtype) if problem.direction == "backward_filter" else 0
    if shared > planner.device.local_memory:
        return f"the sums of {taps} taps do not fit the local memory"
    return ""


def plan(
    problem: ConvProblem,
    planner: Planner,
    height: PlaneAxis,
    width: PlaneAxis,
    block: tuple[int, int] | None,
    epilogue: Epilogue | None = None,
) -> Launches:
    """Plan a problem with blocks of so many rows and columns, or of a size that is chosen here."""
    reason = reason_against(problem, planner, height, width)
    if reason:
        raise Declined(reason)
    height, width = (axis if axis.taps > 1 else replace(axis, step=1) for axis in (height, width))
    rows, columns = block or _block(problem, height, width)
    if problem.direction == "backward_filter":
        return _filter(problem, planner, height, width, rows, columns)
    if problem.direction == "forward":
        return _sums(problem, planner, height, width, rows, columns, epilogue)
    if height.stride == width.stride == 1:
        return _sums(problem, planner, height.turned, width.turned, rows, columns)
    return _phases(problem, planner, height, width, round_up(rows, height.stride), round_up(columns, width.stride))


def _block(problem: ConvProblem, height: PlaneAxis, width: PlaneAxis) -> tuple[int, int]:
    """Choose a work-item's rows and columns, by measurements on an H200.

    More rows share more of what is read. Narrow planes have neither full blocks of columns nor work-items enough.
    """
    data = problem.direction == "backward_data"
    rows, columns = (axis.source if data else axis.size for axis in (height, width))
    rows = ceil_div(rows, height.step)
    if rows < 4:
        return rows, 4
    if columns <= NARROW:
        return 7, 1
    if max(height.stride, width.stride) > 1 or height.taps * width.taps > 9:
        return 4, 4
    filters = problem.direction == "backward_filter"
    if rows <= LOW and not filters:
        return 7, 1
    dilated = width.step > 1
    if problem.dtype in SMALL and columns % WIDE == 0 and (filters or dilated):
        return 4 if dilated else 7, WIDE
    return min((7, 8), key=lambda block: ceil_div(rows, block) * block), 4


def _checked(items: int) -> int:
    if items >= MOST_ITEMS:
        raise Declined(f"{items} work-items are more than {MOST_ITEMS}")
    return items


def _kernel(
    problem: ConvProblem, planner: Planner, name: str, makes: int, axes: tuple[PlaneAxis, PlaneAxis], **more: Any
) -> Any:
    height, width = axes
    sizes = {"KH": height.taps, "KW": width.taps, "SH": height.stride, "SW": width.stride}
    sizes |= {"DH": height.step, "DW": width.step}
    if problem.direction == "forward" or problem.out_channels == problem.in_channels:
        more["ONE_SUM"] = 1
    defines = {"MAKES": makes, "GROUP": GROUP, **sizes, **more, **GRID.defines(), **PLANE_SUMS.defines()}
    return planner.kernel(FILE, name, defines, problem.dtype, MAD_ENABLE)


def _sums(
    problem: ConvProblem,
    planner: Planner,
    height: PlaneAxis,
    width: PlaneAxis,
    rows: int,
    columns: int,
    epilogue: Epilogue | None = None,
) -> Launches:
    forward = problem.direction == "forward"
    source, target = ("x", "y") if forward else ("dy", "dx")
    channels = problem.out_channels if forward else problem.in_channels
    strips, blocks = strips_of(height, rows), ceil_div(width.size, columns)
    items = _checked(problem.batch * channels * strips * blocks)
    more = {"R": rows, "COLS": columns, "LEAD": width.begin % 4, **epilogue_defines(epilogue)}
    launch = Launch(
        _kernel(problem, planner, "depthwise_gpu_columns", SUMS_KERNEL, (height, width), **more),
        (round_up(items, GROUP),),
        (GROUP,),
        (
            *(Buffer(source), Buffer("w"), Buffer("b" if problem.bias else "w")),  # without a bias, this is never read
            *(Buffer(target), *ints(problem.bias), Accumulate(target)),
            *(sums_argument(problem), grid_argument(problem.batch, height, width)),
            *(Constant(np.uint32(items)), *ints(strips, blocks)),
            *(divisor_argument(number) for number in (strips, blocks, channels)),
            *epilogue_arguments(epilogue, problem.dtype),
        ),
        (target,),
    )
    return Launches((launch,))


def _phases(
    problem: ConvProblem, planner: Planner, height: PlaneAxis, width: PlaneAxis, rows: int, columns: int
) -> Launches:
    strips, blocks = ceil_div(height.source, rows), ceil_div(width.source, columns)
    items = _checked(problem.batch * problem.in_channels * strips * blocks)
    begins = {"BEGIN_H": f"({height.begin})", "BEGIN_W": f"({width.begin})"}
    launch = Launch(
        _kernel(
            problem, planner, "depthwise_gpu_phases", PHASES_KERNEL, (height, width), R=rows, COLS=columns, **begins
        ),
        (round_up(items, GROUP),),
        (GROUP,),
        (
            *(Buffer("dy"), Buffer("w"), Buffer("dx"), Accumulate("dx")),
            *ints(problem.in_channels, problem.out_channels // problem.in_channels),
            *(grid_argument(problem.batch, height, width), Constant(np.uint32(items)), *ints(strips, blocks)),
            *(divisor_argument(number) for number in (strips, blocks, problem.in_channels)),
        ),
        ("dx",),
    )
    return Launches((launch,))


def _filter(
    problem: ConvProblem, planner: Planner, height: PlaneAxis, width: PlaneAxis, rows: int, columns: int
) -> Launches:
    taps, filters, size = height.taps * width.taps, problem.out_channels, arithmetic_bytes(problem.dtype)
    strips, blocks = strips_of(height, rows), ceil_div(width.size, columns)
    items = _checked(problem.batch * strips * blocks)
    wanted = ceil_div(planner.device.compute_units * GROUPS_PER_UNIT, filters)
    split_items = max(ceil_div(items, max(min(wanted, items // (2 * GROUP)), 1)), 1)
    splits = max(ceil_div(items, split_items), 1)
    count, layout = filters * taps, WorkspaceLayout()
    partial = layout.take(splits * count * size if splits > 1 else 0, size)
    more = {"R": rows, "COLS": columns, "LEAD": width.begin % 4}
    axes = (height, width)
    first = Launch(
        _kernel(problem, planner, "depthwise_gpu_columns_filter", FILTER_KERNEL, axes, **more),
        (filters * GROUP, splits),
        (GROUP, 1),
        (
            *(Buffer("x"), Buffer("dy"), Buffer("dw"), partial, Accumulate("dw")),
            *ints(problem.in_channels, filters // problem.in_channels),
            grid_argument(problem.batch, height, width),
            *(Constant(np.uint32(items)), Constant(np.uint32(split_items)), *ints(strips, blocks)),
            *(divisor_argument(strips), divisor_argument(blocks)),
        ),
        ("dw",),
    )
    if splits == 1:
        return Launches((first,), layout.nbytes)
    kernel = _kernel(problem, planner, "depthwise_sum_splits", FILTER_KERNEL, axes, **more)
    return Launches((first, sum_of_splits(kernel, partial, splits, count)), layout.nbytes)
