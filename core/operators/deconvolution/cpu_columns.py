"""Deconvolution on CPU devices as one product of matrices over all taps, whose columns are then added up.

Where outputs are few, or strides leave each of their phases few taps, the products of single phases are too small for
the register tile; here no tap is missed and none is multiplied by zero.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

from clgraft.core.errors import Declined
from clgraft.core.operators.conv.arguments import GRID
from clgraft.core.operators.conv.grid import spatial_grid
from clgraft.core.operators.conv.problem import ConvProblem
from clgraft.core.operators.deconvolution.problem import DeconvProblem
from clgraft.core.planning.delegation import delegate
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.kernels import MAD_ENABLE, arithmetic_bytes, vector_lanes
from clgraft.core.planning.launches import Accumulate, Buffer, Launch, Launches, Local, Workspace, ints
from clgraft.core.planning.workspace import WorkspaceLayout
from clgraft.core.problem import SMALL, ceil_div, round_up

NAME = "cpu_columns"
MOST_BYTES = 24 * 2**20  # most bytes of columns: larger ones cost more memory traffic than the product saves
FEW_OUTPUTS = 8  # outputs of a group that do not fill a register tile
MANY_INPUTS = 384  # inputs of a group from which the sums of columns cost little compared with the product
ITEM_ELEMENTS = 8192  # elements of columns that make a work-item worth its dispatch
SLACK = 256  # bytes after the columns


def plan(problem: DeconvProblem, planner: Planner) -> Launches:
    """Plan the product into the workspace, and the sums of its columns."""
    if not planner.device.is_cpu:
        raise Declined("made for CPU devices")
    if problem.direction != "forward" or problem.dtype in SMALL:
        raise Declined("computes forward of float32 and float64")
    if prod(problem.stride) == 1:
        raise Declined("is for strides above 1: there the convolution's kernels miss nothing")
    if problem.groups == problem.in_channels:
        raise Declined("has nothing to sum in a product for one input of a group")
    inputs, outputs = problem.in_channels // problem.groups, problem.out_channels // problem.groups
    if outputs > FEW_OUTPUTS and inputs < MANY_INPUTS:
        raise Declined(f"is for at most {FEW_OUTPUTS} outputs, or for {MANY_INPUTS} inputs and more")
    taps, pixels = prod(problem.kernel), prod(problem.in_size)
    size = arithmetic_bytes(problem.dtype)
    nbytes = problem.batch * problem.out_channels * taps * pixels * size
    if nbytes > MOST_BYTES:
        raise Declined(f"{nbytes} bytes of columns are more than {MOST_BYTES}")
    product = ConvProblem(
        direction="backward_data",
        batch=problem.batch,
        in_channels=problem.out_channels * taps,
        out_channels=problem.in_channels,
        in_size=(pixels,),
        kernel=(1,),
        groups=problem.groups,
        dtype=problem.dtype,
    )
    delegated = delegate(planner, product, {"dy": "x"})
    layout = WorkspaceLayout(delegated.workspace_bytes)
    columns = layout.take(nbytes + SLACK, size)

    def redirected(item: Any) -> Any:
        if item == Buffer("dx"):
            return columns
        return ints(0)[0] if item == Accumulate("dx") else item

    launches = [
        replace(launch, arguments=tuple(map(redirected, launch.arguments)), writes=("y",))
        for launch in delegated.launches
    ]
    launches.append(_sums(problem, planner, columns))
    return Launches(tuple(launches), layout.nbytes)


def _sums(problem: DeconvProblem, planner: Planner, columns: Workspace) -> Launch:
    grid = spatial_grid(problem.convolution)
    lanes = vector_lanes(planner.device, problem.dtype)
    depth, height, width = grid.axes
    # positions of one phase: those that taps reach, and those that the output has
    reach = max(width.stride * (width.size - 1) + grid.reach + 1, width.source - width.begin)
    pitch = round_up(reach // width.stride + 1, lanes) + lanes
    rows, planes = depth.source * height.source, problem.batch * problem.out_channels
    of_row = max(width.size * grid.taps // (depth.stride * height.stride), 1)
    item_rows = min(max(ITEM_ELEMENTS // of_row, 1), rows)
    defines = {"VL": lanes, **GRID.defines()}
    return Launch(
        planner.kernel("deconvolution/cpu_columns.cl", "add_columns", defines, problem.dtype, MAD_ENABLE),
        (ceil_div(rows, item_rows), planes),
        (1, 1),
        (
            *(columns, Buffer("b" if problem.bias else "x"), Buffer("y")),
            *(*ints(problem.bias), Accumulate("y"), *ints(problem.out_channels), grid.argument()),
            *(*ints(item_rows, pitch), Local(width.stride * pitch * columns.itemsize)),
        ),
        ("y",),
    )
