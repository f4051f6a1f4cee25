"""Depthwise convolution on GPUs: a work-item per column of several rows, in plain OpenCL C. Runs on any device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from clgraft.core.conv.depthwise_axes import Axis, arithmetic_bytes, axes_of, ints
from clgraft.core.conv.depthwise_rows import sum_of_splits
from clgraft.core.conv.problem import ConvProblem
from clgraft.core.errors import Declined
from clgraft.core.plan import Accumulate, Buffer, Constant, Launch, Steps, Workspace

if TYPE_CHECKING:
    from clgraft.core.context import Context

NAME = "depthwise_gpu"
FOR_GPUS = True  # on a CPU no candidate of a search
OPTIONS = ("-cl-mad-enable",)
FILE = "depthwise_gpu.cl"
GROUP = 128
MOST_TAPS = 64  # that are unrolled
MOST_SUMS = 25  # taps whose gradients a work-item keeps in registers
GROUPS_PER_UNIT = 16  # work-groups that each compute unit should get at least
MOST_ITEMS = 2**31
ROWS = (1, 2, 4, 8)  # of a work-item, that are searched


def candidates(problem: ConvProblem, context: Context) -> Iterator[Mapping[str, int | str]]:
    """Give the settings to search: the heuristic's (none), then ``rows`` of a work-item."""
    yield {}
    for rows in ROWS:
        yield {"rows": rows}


def plan(problem: ConvProblem, context: Context, settings: Mapping[str, int | str] | None = None) -> Steps:
    """Plan one launch; a filter's gradient has a second one if the images are split."""
    wanted = int((settings or {}).get("rows", 0))
    if settings and (set(settings) != {"rows"} or wanted not in ROWS):
        raise Declined(f"got settings {dict(settings)}, expected rows of {ROWS}")
    height, width = axes_of(problem)
    taps = height.k * width.k
    if wanted > 1 and _alone(height, taps):
        raise Declined(f"serves this kernel, stride and dilation with 1 row, not {wanted}")
    if problem.direction == "backward_filter":
        return _filter(problem, context, height, width, wanted)
    if problem.direction == "forward":
        return _rows(problem, context, height, width, wanted)
    if height.s == width.s == 1:
        height, width = (Axis(a.o, a.i, a.k, 1, a.reach - a.p, a.d) for a in (height, width))
        return _rows(problem, context, height, width, wanted)
    rows = wanted or (4 if taps <= MOST_TAPS else 1)
    strips = -(-height.i // rows)
    items = _checked(problem.batch * problem.in_channels * strips * width.i)
    launch = Launch(
        context.kernel(FILE, "depthwise_gpu_spread", _defines(height, width, rows), problem.dtype, OPTIONS),
        (-(-items // GROUP) * GROUP,),
        (GROUP,),
        (
            *(Buffer("dy"), Buffer("w"), Buffer("dx"), Accumulate("dx"), Constant(np.uint32(items))),
            *ints(problem.in_channels, problem.out_channels // problem.in_channels),
            *ints(height.i, width.i, height.o, width.o, height.p, width.p, height.d, strips),
        ),
        ("dx",),
    )
    return Steps((launch,))


def _checked(items: int) -> int:
    if items >= MOST_ITEMS:
        raise Declined(f"{items} work-items are more than {MOST_ITEMS}")
    return items


def _defines(height: Axis, width: Axis, rows: int) -> dict[str, int]:
    defines = {"R": rows, "GROUP": GROUP, "KH": height.k, "KW": width.k, "SH": height.s, "SW": width.s}
    defines["DW"] = width.d
    if height.k * width.k > MOST_TAPS:
        defines["UNROLL"] = 1
    return defines


def _alone(height: Axis, taps: int) -> bool:
    """Whether a work-item can have one row only: too long a program, or rows that lie no dilation apart."""
    return taps > MOST_TAPS or (height.s > 1 and height.d > 1)


def _rows_per_item(height: Axis, taps: int) -> int:
    """Choose the rows of a work-item: lines are shared where rows lie a dilation apart, in not too long a program."""
    if _alone(height, taps):
        return 1
    most = 8 if taps <= 25 else 2
    return min(most, -(-height.o // height.d))


def _strips(height: Axis, rows: int) -> int:
    """Count the strips of rows that lie a dilation apart; rows of their own need no order."""
    return -(-height.o // (rows * height.d)) * height.d


def _rows(problem: ConvProblem, context: Context, height: Axis, width: Axis, rows: int) -> Steps:
    forward = problem.direction == "forward"
    source, target = ("x", "y") if forward else ("dy", "dx")
    channels = problem.out_channels if forward else problem.in_channels
    multiplier = problem.out_channels // problem.in_channels
    sums, shared = (1, multiplier) if forward else (multiplier, 1)
    rows = rows or _rows_per_item(height, height.k * width.k)
    strips = _strips(height, rows)
    items = _checked(problem.batch * channels * strips * width.o)
    launch = Launch(
        context.kernel(FILE, "depthwise_gpu_rows", _defines(height, width, rows), problem.dtype, OPTIONS),
        (-(-items // GROUP) * GROUP,),
        (GROUP,),
        (
            *(Buffer(source), Buffer("w"), Buffer("b" if problem.bias else "w")),  # without a bias never read
            *(Buffer(target), *ints(problem.bias), Accumulate(target), Constant(np.uint32(items))),
            *ints(channels, sums, shared, not forward, height.i, width.i, height.o, width.o, height.p, width.p),
            *ints(height.d, strips),
        ),
        (target,),
    )
    return Steps((launch,))


def _filter(problem: ConvProblem, context: Context, height: Axis, width: Axis, rows: int) -> Steps:
    taps, filters = height.k * width.k, problem.out_channels
    tap_rows = height.k if taps <= MOST_SUMS else 1
    if tap_rows * width.k > MOST_SUMS:
        raise Declined(f"the sums of {width.k} taps in a row do not fit the registers")
    rows = rows or _rows_per_item(height, taps)
    strips = _strips(height, rows)
    items = _checked(problem.batch * strips * width.o)
    tap_groups = height.k // tap_rows
    wanted = -(-context.device.compute_units * GROUPS_PER_UNIT // (filters * tap_groups))
    split_items = max(-(-items // max(min(wanted, items // (4 * GROUP)), 1)), 1)
    splits = max(-(-items // split_items), 1)
    size, count = arithmetic_bytes(problem), filters * taps
    defines = {**_defines(height, width, rows), "TAP_ROWS": tap_rows, "UNROLL": 64}
    first = Launch(
        context.kernel(FILE, "depthwise_gpu_filter", defines, problem.dtype, OPTIONS),
        (filters * GROUP, tap_groups, splits),
        (GROUP, 1, 1),
        (
            *(Buffer("x"), Buffer("dy"), Buffer("dw"), Workspace(0, size), Accumulate("dw")),
            *(Constant(np.uint32(items)), Constant(np.uint32(split_items))),
            *ints(problem.in_channels, filters // problem.in_channels),
            *ints(height.i, width.i, height.o, width.o, height.p, width.p, height.d, strips),
        ),
        ("dw",),
    )
    if splits == 1:
        return Steps((first,), 256)
    return Steps((first, sum_of_splits(problem, context, splits, count)), splits * count * size)
