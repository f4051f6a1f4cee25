"""Pooling on GPUs in one or two axes: windows with unrolled taps, whose results share what they read."""

from __future__ import annotations

from math import prod
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
from clgraft.core.problem import ceil_div, round_up

NAME = "windows_gpu"

MOST_TAPS = 49  # taps of a window: they are unrolled
MOST_STRIP = 64  # elements that a work-item reads
ITEM_ROWS = 4  # rows of results of a work-item
GROUP = 128
BACKWARD_GROUP = 256
MOST_CELLS_W = 64  # cells in the width of a tile of dx
TILE_ELEMENTS = 2048  # elements of a tile of dx, about
LARGEST = 2**31 - 1


def plan(problem: PoolProblem, planner: Planner) -> Launches:
    """Plan one launch."""
    device = planner.device
    if device.is_cpu:
        raise Declined("is for GPUs")
    if problem.ndim > 2 or prod(problem.kernel) > MOST_TAPS:
        raise Declined(f"is for one or two axes, and unrolls at most {MOST_TAPS} taps")
    if device.max_work_group_size < BACKWARD_GROUP:
        raise Declined(f"needs work-groups of {BACKWARD_GROUP}")
    ih, iw = (1, *problem.in_size)[-2:]
    oh, ow = (1, *problem.out_size)[-2:]
    kh, kw = (1, *problem.kernel)[-2:]
    sh, sw = (1, *problem.stride)[-2:]
    ph, pw = (0, *problem.pad_begin)[-2:]
    planes = problem.batch * problem.channels
    if (ih + ph + kh) * (iw + pw + kw) > LARGEST or planes * max(ih * iw, oh * ow) > LARGEST:
        raise Declined("counts elements in 32 bits")
    macros: dict[str, Any] = {**operator_macros(problem), "KH": kh, "KW": kw, "SH": sh, "SW": sw}
    macros |= WINDOWS.defines()
    bound = (*bind(problem), windows_argument(problem))
    if problem.direction.endswith("_argmax"):
        macros["ARGMAX"] = 1
    if problem.direction.startswith("forward"):
        rows = max(rows for rows in (1, 2, ITEM_ROWS) if rows == 1 or ((rows - 1) * sh + kh) * kw <= MOST_STRIP)
        rows = min(rows, oh)
        strips = ceil_div(oh, rows)
        count = planes * strips * ow
        macros |= {"GROUP": GROUP, "ITEM_ROWS": rows}
        kernel = planner.kernel("pooling/windows_gpu.cl", "pool_windows_forward", macros, problem.dtype)
        sizes = (Constant(np.uint32(count)), *ints(strips), divisor_argument(strips), divisor_argument(ow))
        groups = ceil_div(count, GROUP)
        return Launches((Launch(kernel, (groups * GROUP,), (GROUP,), (*bound, *sizes), outputs(problem)),))
    if problem.operator in NORMS:
        raise Declined("has no gradients of norms")
    cells_h, cells_w = (ih - 1 + ph) // sh + 1, (iw - 1 + pw) // sw + 1
    wide = ceil_div(cells_w, ceil_div(cells_w, MOST_CELLS_W))
    high = max(1, min(cells_h, TILE_ELEMENTS // (wide * sh * sw)))
    high = ceil_div(cells_h, ceil_div(cells_h, high))
    cells = min(high, ceil_div(ITEM_ROWS, sh))
    high = round_up(high, cells)
    windows = (high + (kh - 1) // sh) * (wide + (kw - 1) // sw)
    held = windows * (arithmetic_bytes(problem.dtype) + 4)
    if held > device.local_memory:
        raise Declined(f"needs {held} bytes of local memory")
    macros |= {"GROUP": BACKWARD_GROUP, "CELLS_H": high, "CELLS_W": wide, "ITEM_CELLS": cells}
    kernel = planner.kernel("pooling/windows_gpu.cl", "pool_windows_backward", macros, problem.dtype)
    tiles_h, tiles_w = ceil_div(cells_h, high), ceil_div(cells_w, wide)
    groups = planes * tiles_h * tiles_w
    if groups * BACKWARD_GROUP > LARGEST:
        raise Declined(f"{groups} work-groups are too many")
    return Launches(
        (
            Launch(
                kernel,
                (groups * BACKWARD_GROUP,),
                (BACKWARD_GROUP,),
                (*bound, *ints(tiles_h, tiles_w)),
                outputs(problem),
            ),
        )
    )
