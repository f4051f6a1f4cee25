"""Gradients of pooling in channels last on CPU devices: each work-item owns rows of dx, vectors run along channels."""

from __future__ import annotations

from typing import Any

from clgraft.core.errors import Declined
from clgraft.core.operators.pooling.arguments import ends
from clgraft.core.operators.pooling.elements import bind
from clgraft.core.operators.pooling.problem import NORMS, OPERATORS, PoolProblem
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.kernels import vector_lanes
from clgraft.core.planning.launches import Launch, Launches, ints
from clgraft.core.problem import SMALL, ceil_div, in_3d

NAME = "channels_cpu"
ITEMS_PER_UNIT = 8  # work-items per core, so that no core waits long for the last one
LEAST_ROWS = 4  # strides of rows of a work-item: windows at its edges are looked at twice


def plan(problem: PoolProblem, planner: Planner) -> Launches:
    """Plan one launch over ranges of rows of dx."""
    if not planner.device.is_cpu:
        raise Declined("is for CPU devices")
    if problem.direction != "backward" or problem.operator in NORMS:
        raise Declined(f"has no {problem.direction} of {problem.operator}")
    if problem.ndim > 2:
        raise Declined("has one or two spatial axes")
    if problem.dtype in SMALL:
        raise Declined("adds in memory, where float16 would round every sum")
    if problem.channels < 2 or not problem.batch:
        raise Declined(f"got {problem.batch} images of {problem.channels} channels, expected several channels")
    lanes = min(vector_lanes(planner.device, problem.dtype), 1 << (problem.channels.bit_length() - 1))
    (_, ih, iw), (_, oh, ow) = in_3d(problem.in_size, 1), in_3d(problem.out_size, 1)
    (_, kh, kw), (_, sh, sw) = in_3d(problem.kernel, 1), in_3d(problem.stride, 1)
    (_, ph, pw), (_, eh, ew) = in_3d(problem.pad_begin, 0), in_3d(ends(problem), 1)
    wanted = ceil_div(planner.device.compute_units * ITEMS_PER_UNIT, problem.batch)
    item_rows = min(max(ceil_div(ih, wanted), LEAST_ROWS * sh), ih)
    macros = {"OPERATOR": OPERATORS.index(problem.operator), "VL": lanes}
    kernel = planner.kernel("pooling/channels_last.cl", "pool_channels_backward", macros, problem.dtype)
    arguments: list[Any] = [*bind(problem), *ints(problem.channels, ih, iw, oh, ow, kh, kw, sh, sw, ph, pw, eh, ew)]
    arguments += ints(problem.count_padding, item_rows)
    items = problem.batch * ceil_div(ih, item_rows)
    return Launches((Launch(kernel, (items,), (1,), tuple(arguments), ("dx",)),))
