"""Kernels of one tap with a stride on CPU devices: what moves the pixels that are met to lie side by side, and back."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from clgraft.core.operators.conv.arguments import GRID, TARGET
from clgraft.core.operators.conv.cpu_costs import costs
from clgraft.core.operators.conv.grid import spatial_grid
from clgraft.core.operators.conv.past_caches import PRODUCTS, past_caches
from clgraft.core.operators.conv.problem import ConvProblem
from clgraft.core.operators.conv.register_tile import lanes_of
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.launches import Accumulate, Buffer, Constant, Launch, Workspace, ints
from clgraft.core.planning.workspace import WorkspaceLayout
from clgraft.core.problem import SMALL, ceil_div

FILE = "conv/gemm_cpu/dense.cl"
COSTS = costs("product")
ELEMENTS = 16384  # elements that a work-item writes


def can_be_dense(problem: ConvProblem) -> bool:
    """Return whether the stride can be taken out of the product: pixels are then collected first, or spread at last.

    In 16 bits a gradient of x that is added to what is there would be rounded twice.
    """
    if prod(problem.kernel) != 1 or all(stride == 1 for stride in problem.stride):
        return False
    return problem.direction != "backward_data" or problem.dtype not in SMALL


def dense_pixels(problem: ConvProblem, layout: WorkspaceLayout) -> Workspace:
    """Take room for the pixels of x that are met, or of dx."""
    itemsize = np.dtype(problem.dtype).itemsize
    return layout.take(problem.batch * problem.in_channels * prod(problem.out_size) * itemsize, itemsize)


def collect_cycles(problem: ConvProblem, planner: Planner) -> float:
    """Estimate the cycles in which the cores collect pixels."""
    elements = problem.batch * problem.in_channels * prod(problem.out_size)
    return elements / lanes_of(planner.device, problem.dtype) * COSTS["collect"] / planner.device.compute_units


def collect(problem: ConvProblem, planner: Planner, dense: Workspace, target: str) -> Launch:
    """Return the launch that collects pixels of x, for what writes the target."""
    return _move(problem, planner, "collect", problem.out_size, (Buffer("x"), dense), target)


def spread(problem: ConvProblem, planner: Planner, dense: Workspace) -> Launch:
    """Return the launch that spreads pixels to dx."""
    return _move(problem, planner, "spread", problem.in_size, (dense, Buffer("dx"), Accumulate("dx")), "dx")


def _move(
    problem: ConvProblem,
    planner: Planner,
    name: str,
    written: tuple[int, ...],
    buffers: tuple[Any, ...],
    target: str,
) -> Launch:
    rows = problem.batch * problem.in_channels * prod(written[:-1])
    item_rows = max(ELEMENTS // max(written[-1], 1), 1)
    lanes = lanes_of(planner.device, problem.dtype)
    defines = {**GRID.defines(), **TARGET.defines(), "VL": lanes, "HALF_VL": lanes // 2}
    if name == "spread":
        defines |= past_caches(planner, problem, lanes, PRODUCTS)
    return Launch(
        planner.kernel(FILE, name, defines, problem.dtype),
        (ceil_div(rows, item_rows), 1, 1),
        (1, 1, 1),
        (*buffers, Constant(np.int64(rows)), *ints(item_rows), spatial_grid(problem).source_argument()),
        (target,),
    )
