"""Kernels of one tap with a stride on CPU devices: what moves the pixels that are met to lie side by side."""

from __future__ import annotations

from math import prod

import numpy as np

from clgraft.core.operators.conv.arguments import GRID, TARGET
from clgraft.core.operators.conv.cpu_costs import costs
from clgraft.core.operators.conv.grid import forward_grid, spatial_grid
from clgraft.core.operators.conv.problem import ConvProblem
from clgraft.core.operators.conv.register_tile import lanes_of
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.launches import Buffer, Constant, Launch, Workspace, ints
from clgraft.core.planning.workspace import WorkspaceLayout
from clgraft.core.problem import ceil_div

FILE = "conv/gemm_cpu/dense.cl"
COSTS = costs("product")
ELEMENTS = 16384  # elements that a work-item writes
MOST_STRIDE = 1024  # of pixels that are spread: half of what the kernel puts together (STAGED)


def can_be_dense(problem: ConvProblem) -> bool:
    """Return whether the stride can be taken out of the product: pixels are collected first, or spread at last.

    Pixels of x that are in its padding are zeros; none of dx are spread there.
    """
    if prod(problem.kernel) != 1 or all(stride == 1 for stride in problem.stride):
        return False
    if problem.direction != "backward_data":
        return True
    return forward_grid(problem).inside and problem.stride[-1] <= MOST_STRIDE


def dense_pixels(problem: ConvProblem, layout: WorkspaceLayout) -> Workspace:
    """Take room for the pixels of x that are met."""
    itemsize = np.dtype(problem.dtype).itemsize
    return layout.take(problem.batch * problem.in_channels * prod(problem.out_size) * itemsize, itemsize)


def collect_cycles(problem: ConvProblem, planner: Planner) -> float:
    """Estimate the cycles in which the cores collect pixels."""
    elements = problem.batch * problem.in_channels * prod(problem.out_size)
    return elements / lanes_of(planner.device, problem.dtype) * COSTS["collect"] / planner.device.compute_units


def collect(problem: ConvProblem, planner: Planner, dense: Workspace, target: str) -> Launch:
    """Return the launch that collects pixels of x, for what writes the target."""
    rows = problem.batch * problem.in_channels * prod(problem.out_size[:-1])
    item_rows = max(ELEMENTS // max(problem.out_size[-1], 1), 1)
    lanes = lanes_of(planner.device, problem.dtype)
    defines = {**GRID.defines(), **TARGET.defines(), "VL": lanes, "HALF_VL": lanes // 2}
    return Launch(
        planner.kernel(FILE, "collect", defines, problem.dtype),
        (ceil_div(rows, item_rows), 1, 1),
        (1, 1, 1),
        (Buffer("x"), dense, Constant(np.int64(rows)), *ints(item_rows), spatial_grid(problem).source_argument()),
        (target,),
    )
