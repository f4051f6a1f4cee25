"""Softmax of rows on GPUs: read once into the registers of a work-group, or of several that share a long row."""

from __future__ import annotations

from typing import Any

import numpy as np

from clgraft.core.errors import Declined
from clgraft.core.operators.softmax.problem import SoftmaxProblem
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.kernels import arithmetic_bytes
from clgraft.core.planning.launches import Accumulate, Buffer, Constant, Launch, Launches, Scalar, Workspace, ints
from clgraft.core.problem import ceil_div, round_up

NAME = "rows_gpu"

FEWEST_CHANNELS = 8  # below, a work-item alone reads a row
FEWEST_LANES = 4  # work-items that share a row
ITEM, PART_ITEM = 8, 16  # elements of a work-item; in parts of rows
QUAD = 4  # neighbours that a work-item reads at once, where rows are made of them
GROUP = 128  # work-items of a work-group, at least
MOST_GROUP = 256
LARGEST = 2**31 - 1


def plan(problem: SoftmaxProblem, planner: Planner) -> Launches:
    """Plan one launch, or two where a row has several parts: their numbers, and the results."""
    device, rows, channels = planner.device, problem.images, problem.channels
    if device.is_cpu:
        raise Declined("is for GPUs")
    if problem.pixels != 1 or channels < FEWEST_CHANNELS:
        raise Declined(f"is for rows of at least {FEWEST_CHANNELS} channels")
    if device.max_work_group_size < MOST_GROUP:
        raise Declined(f"needs work-groups of {MOST_GROUP}")
    size = arithmetic_bytes(problem.dtype)
    lanes = max(FEWEST_LANES, 1 << (ceil_div(channels, ITEM) - 1).bit_length())
    item = min(ITEM, round_up(ceil_div(channels, lanes), 4))
    if lanes > MOST_GROUP:
        lanes, item = MOST_GROUP, PART_ITEM * 4 // size
    group = max(lanes, GROUP)
    parts = ceil_div(channels, lanes * item)
    if rows * max(parts, lanes) > LARGEST // group or channels > LARGEST - group * item:
        raise Declined(f"counts rows and channels in 32 bits, got {rows} rows of {channels}")
    wide = QUAD if channels % QUAD == 0 else 1
    macros = {"LOG": int(problem.log), "GROUP": group, "LANES": lanes, "ITEM": item, "WIDE": wide}
    *inputs, output = (argument.name for argument in problem.arguments())
    scale = Scalar("scale", "float64" if problem.dtype == "float64" else "float32")
    (count,) = ints(channels)

    def launch(step: str, groups: int, *bound: Any) -> Launch:
        name = f"softmax_{step}_{problem.direction}"
        kernel = planner.kernel("softmax/rows_gpu.cl", name, macros, problem.dtype)
        return Launch(kernel, (groups * group,), (group,), (*(Buffer(name) for name in inputs), *bound), (output,))

    results = (Buffer(output), Accumulate(output), scale)
    if parts == 1:
        rows_of_group = group // lanes
        return Launches((launch("rows", ceil_div(rows, rows_of_group), *results, Constant(np.int64(rows)), count),))
    numbers, forward = Workspace(0, size), problem.direction == "forward"
    return Launches(
        (
            launch("parts", rows * parts, numbers, *((scale,) if forward else ()), count, *ints(parts)),
            launch("finish", rows * parts, *results, numbers, count, *ints(parts)),
        ),
        rows * parts * size * 2,
    )
