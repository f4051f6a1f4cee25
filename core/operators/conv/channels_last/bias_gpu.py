"""Gradient of the bias in channels last on GPUs: a work-item sums neighbouring channels of some rows."""

from __future__ import annotations

from math import prod

import numpy as np

from clgraft.core.errors import Declined
from clgraft.core.operators.conv.problem import ConvProblem
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.kernels import arithmetic_bytes
from clgraft.core.planning.launches import Accumulate, Buffer, Constant, Launch, Launches, Workspace, ints
from clgraft.core.problem import ceil_div

NAME = "bias_rows_gpu"
FOR_GPUS = True  # a search on a CPU device does not try it
FILE = "conv/channels_last/bias_gpu.cl"
GROUP = 256  # work-items of a work-group
MOST_COLUMNS = 32  # work-items along the channels of a row
AHEAD = 4  # rows that are read at once
GROUPS_PER_UNIT = 4  # work-groups that each compute unit gets at most
LEAST_ROWS = 8  # of a work-item
MOST_PARTS = 256  # which a work-item of the second launch adds up


def plan(problem: ConvProblem, planner: Planner) -> Launches:
    """Plan the sums of parts of the rows, and their sum."""
    if planner.device.is_cpu:
        raise Declined("is for GPUs")
    if problem.direction != "backward_bias":
        raise Declined(f"direction {problem.direction}, not backward_bias")
    if planner.device.max_work_group_size < GROUP:
        raise Declined(f"needs work-groups of {GROUP}")
    rows, channels = problem.batch * prod(problem.out_size), problem.out_channels
    if not rows:
        raise Declined("has no rows")
    wide = 1 if channels % 4 else 4
    columns = min(MOST_COLUMNS, 1 << (channels // wide - 1).bit_length())
    blocks = ceil_div(channels, columns * wide)
    wanted = min(MOST_PARTS, ceil_div(planner.device.compute_units * GROUPS_PER_UNIT, blocks))
    part_rows = ceil_div(rows, max(1, min(wanted, rows // (LEAST_ROWS * GROUP // columns))))
    parts = ceil_div(rows, part_rows)
    size = arithmetic_bytes(problem.dtype)
    defines = {"GROUP": GROUP, "WIDE": wide, "COLUMNS": columns, "AHEAD": AHEAD}
    partial = Workspace(0, size)
    counts = (*ints(channels), Constant(np.int64(rows)), Constant(np.int64(part_rows)))
    sums = planner.kernel(FILE, "bias_rows_gpu", defines, problem.dtype)
    join = planner.kernel(FILE, "bias_rows_gpu_join", defines, problem.dtype)
    group = (columns, GROUP // columns)
    launches = (
        Launch(sums, (blocks * columns, parts * group[1]), group, (Buffer("dy"), partial, *counts), ("db",)),
        Launch(join, (channels,), None, (partial, Buffer("db"), Accumulate("db"), *ints(channels, parts)), ("db",)),
    )
    return Launches(launches, parts * channels * size)
