"""Depthwise convolution on GPUs: a work-item per column of several rows, in plain OpenCL C. Runs on any device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import gcd, prod
from typing import Any

import numpy as np

from clgraft.core.errors import Declined
from clgraft.core.operators.conv.arguments import GRID, PLANE_SUMS
from clgraft.core.operators.conv.depthwise import gpu_columns, gpu_planes, gpu_staged
from clgraft.core.operators.conv.depthwise.axes import (
    PlaneAxis,
    axes_of,
    grid_argument,
    strips_of,
    sum_of_splits,
    sums_argument,
)
from clgraft.core.operators.conv.problem import ConvProblem
from clgraft.core.planning.epilogue import Epilogue, epilogue_arguments, epilogue_defines
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.kernels import MAD_ENABLE, arithmetic_bytes
from clgraft.core.planning.launches import Accumulate, Buffer, Constant, Launch, Launches, ints
from clgraft.core.planning.workspace import WorkspaceLayout
from clgraft.core.problem import ceil_div, round_up

NAME = "depthwise_gpu"
FOR_GPUS = True  # a search on a CPU device does not try it
FILE = "conv/depthwise/gpu.cl"
WIDE_FILE = "conv/depthwise/gpu_wide.cl"
ROWS_KERNEL, SPREAD_KERNEL, FILTER_KERNEL = 1, 2, 3  # the files' MAKES: what a program holds
GROUP = 128
MOST_TAPS = 64  # most taps that are unrolled
MOST_LANES = 32  # most lanes that share a result
MOST_SUMS = 25  # taps whose gradients a work-item keeps in registers
GROUPS_PER_UNIT = 16  # work-groups that each compute unit should get at least
MOST_ITEMS = 2**31
ROWS = (1, 2, 4, 8)  # rows of a work-item that a search tries
BLOCKS = tuple((rows, columns) for columns in (1, 4) for rows in (2, 4, 8))  # and blocks


def candidates(problem: ConvProblem, planner: Planner) -> Iterator[Mapping[str, int | str]]:
    """Return the settings to search: the heuristic's (none), ``rows`` of a work-item, and ``rows`` with ``columns``.

    With ``rows`` alone, a work-item has one column, of rows that lie a dilation apart.
    """
    yield {}
    for rows in ROWS:
        yield {"rows": rows}
    for rows, columns in BLOCKS:
        yield {"rows": rows, "columns": columns}


def fuses(problem: ConvProblem, epilogue: Epilogue) -> bool:
    """Return whether an epilogue is served: all of them, forward, where taps are unrolled."""
    return problem.direction == "forward" and prod(problem.kernel) <= MOST_TAPS


def plan(
    problem: ConvProblem,
    planner: Planner,
    settings: Mapping[str, int | str] | None = None,
    epilogue: Epilogue | None = None,
) -> Launches:
    """Plan one launch; a filter's gradient has a second one if the images are split."""
    wanted, columns = (int((settings or {}).get(name, 0)) for name in ("rows", "columns"))
    if settings and not (
        (set(settings) == {"rows"} and wanted in ROWS)
        or (set(settings) == {"rows", "columns"} and (wanted, columns) in BLOCKS)
    ):
        raise Declined(f"got settings {dict(settings)}, expected rows of {ROWS} or rows and columns of {BLOCKS}")
    height, width = axes_of(problem)
    if columns:
        return gpu_columns.plan(problem, planner, height, width, (wanted, columns), epilogue)
    for small in (gpu_planes, gpu_staged):
        if not settings and not small.reason_against(problem, planner, height, width):
            return small.plan(problem, planner, height, width, epilogue)
    if not settings and not gpu_columns.reason_against(problem, planner, height, width):
        return gpu_columns.plan(problem, planner, height, width, None, epilogue)
    taps = height.taps * width.taps
    if wanted > 1 and _alone(height, taps):
        raise Declined(f"serves this kernel, stride and dilation with 1 row, not {wanted}")
    if problem.direction == "backward_filter":
        return _filter(problem, planner, height, width, wanted)
    if problem.direction == "forward":
        return _rows(problem, planner, height, width, wanted, epilogue)
    if height.stride == width.stride == 1:
        height, width = (a.turned for a in (height, width))
        return _rows(problem, planner, height, width, wanted)
    if taps > MOST_TAPS:
        return _wide_spread(problem, planner, height, width)
    rows = wanted or 4
    strips = ceil_div(height.source, rows)
    items = _checked(problem.batch * problem.in_channels * strips * width.source)
    launch = Launch(
        _kernel(problem, planner, FILE, "depthwise_gpu_spread", SPREAD_KERNEL, _defines(height, width), R=rows),
        (round_up(items, GROUP),),
        (GROUP,),
        (
            *(Buffer("dy"), Buffer("w"), Buffer("dx"), Accumulate("dx")),
            *ints(problem.in_channels, problem.out_channels // problem.in_channels),
            *(grid_argument(problem.batch, height, width), Constant(np.uint32(items)), *ints(strips)),
        ),
        ("dx",),
    )
    return Launches((launch,))


def _checked(items: int) -> int:
    if items >= MOST_ITEMS:
        raise Declined(f"{items} work-items are more than {MOST_ITEMS}")
    return items


def _defines(height: PlaneAxis, width: PlaneAxis) -> dict[str, Any]:
    sizes = {"KH": height.taps, "KW": width.taps, "SH": height.stride, "SW": width.stride, "DW": width.step}
    return {"GROUP": GROUP, **sizes, **GRID.defines(), **PLANE_SUMS.defines()}


def _kernel(
    problem: ConvProblem, planner: Planner, file: str, name: str, makes: int, defines: dict[str, Any], **more: int
) -> Any:
    return planner.kernel(file, name, {"MAKES": makes, **defines, **more}, problem.dtype, MAD_ENABLE)


def _alone(height: PlaneAxis, taps: int) -> bool:
    """Return whether a work-item can have one row only: too long a program, or rows that lie no dilation apart."""
    return taps > MOST_TAPS or (height.stride > 1 and height.step > 1)


def _rows_per_item(height: PlaneAxis, taps: int) -> int:
    """Choose the rows of a work-item: lines are shared where rows lie a dilation apart, in not too long a program."""
    if _alone(height, taps):
        return 1
    most = 8 if taps <= 25 else 2
    return min(most, ceil_div(height.size, height.step))


def _rows(
    problem: ConvProblem,
    planner: Planner,
    height: PlaneAxis,
    width: PlaneAxis,
    rows: int,
    epilogue: Epilogue | None = None,
) -> Launches:
    forward = problem.direction == "forward"
    source, target = ("x", "y") if forward else ("dy", "dx")
    channels = problem.out_channels if forward else problem.in_channels
    taps = height.taps * width.taps
    strips: tuple[int, ...] = ()
    if taps > MOST_TAPS:
        each = _lanes(width)
        items = _checked(problem.batch * channels * height.size * width.size * each)
        file, name, more = WIDE_FILE, "depthwise_gpu_wide_rows", {"LANES": each}
    else:
        each, rows = 1, rows or _rows_per_item(height, taps)
        strips = (strips_of(height, rows),)
        items = _checked(problem.batch * channels * strips[0] * width.size)
        file, name, more = FILE, "depthwise_gpu_rows", {"R": rows}
    launch = Launch(
        _kernel(
            problem, planner, file, name, ROWS_KERNEL, {**_defines(height, width), **epilogue_defines(epilogue)}, **more
        ),
        (round_up(items, GROUP),),
        (GROUP,),
        (
            *(Buffer(source), Buffer("w"), Buffer("b" if problem.bias else "w")),  # without a bias, this is never read
            *(Buffer(target), *ints(problem.bias), Accumulate(target)),
            *(sums_argument(problem), grid_argument(problem.batch, height, width)),
            *(Constant(np.uint32(items // each)), *ints(*strips)),
            *epilogue_arguments(epilogue, problem.dtype),
        ),
        (target,),
    )
    return Launches((launch,))


def _lanes(width: PlaneAxis) -> int:
    """Choose the lanes that share a result: a power of 2, as many as results lie apart and a row's taps keep busy."""
    lanes = 1
    while lanes < min(width.stride, MOST_LANES) and 2 * lanes <= width.taps:
        lanes *= 2
    return lanes


def _wide_spread(problem: ConvProblem, planner: Planner, height: PlaneAxis, width: PlaneAxis) -> Launches:
    items = _checked(problem.batch * problem.in_channels * height.source * width.source)
    kernel = _kernel(problem, planner, WIDE_FILE, "depthwise_gpu_wide_spread", SPREAD_KERNEL, _defines(height, width))
    launch = Launch(
        kernel,
        (round_up(items, GROUP),),
        (GROUP,),
        (
            *(Buffer("dy"), Buffer("w"), Buffer("dx"), Accumulate("dx")),
            *ints(problem.in_channels, problem.out_channels // problem.in_channels),
            *(grid_argument(problem.batch, height, width), Constant(np.uint32(items))),
            *ints(height.stride // gcd(height.stride, height.step), width.stride // gcd(width.stride, width.step)),
        ),
        ("dx",),
    )
    return Launches((launch,))


def _filter(problem: ConvProblem, planner: Planner, height: PlaneAxis, width: PlaneAxis, rows: int) -> Launches:
    taps, filters, size = height.taps * width.taps, problem.out_channels, arithmetic_bytes(problem.dtype)
    most = min(MOST_SUMS, planner.device.local_memory // (GROUP * size))
    tap_rows = height.taps if taps <= most else 1
    if tap_rows * width.taps > most:
        raise Declined(f"the sums of {width.taps} taps in a row do not fit the registers and the local memory")
    rows = rows or _rows_per_item(height, taps)
    strips = strips_of(height, rows)
    items = _checked(problem.batch * strips * width.size)
    tap_groups = height.taps // tap_rows
    wanted = ceil_div(planner.device.compute_units * GROUPS_PER_UNIT, filters * tap_groups)
    split_items = max(ceil_div(items, max(min(wanted, items // (4 * GROUP)), 1)), 1)
    splits = max(ceil_div(items, split_items), 1)
    count, layout = filters * taps, WorkspaceLayout()
    partial = layout.take(splits * count * size if splits > 1 else 0, size)
    defines = {**_defines(height, width), "R": rows, "TAP_ROWS": tap_rows}
    first = Launch(
        _kernel(problem, planner, FILE, "depthwise_gpu_filter", FILTER_KERNEL, defines),
        (filters * GROUP, tap_groups, splits),
        (GROUP, 1, 1),
        (
            *(Buffer("x"), Buffer("dy"), Buffer("dw"), partial, Accumulate("dw")),
            *ints(problem.in_channels, filters // problem.in_channels),
            grid_argument(problem.batch, height, width),
            *(Constant(np.uint32(items)), Constant(np.uint32(split_items)), *ints(strips)),
        ),
        ("dw",),
    )
    if splits == 1:
        return Launches((first,), layout.nbytes)
    kernel = _kernel(problem, planner, FILE, "depthwise_sum_splits", FILTER_KERNEL, defines)
    return Launches((first, sum_of_splits(kernel, partial, splits, count)), layout.nbytes)
