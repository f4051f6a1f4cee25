"""The last launch of a filter's gradient on CPU devices: the sums of its parts."""

from __future__ import annotations

from clgraft.core.operators.conv.cpu_costs import costs
from clgraft.core.operators.conv.grid import forward_grid
from clgraft.core.operators.conv.problem import ConvProblem
from clgraft.core.operators.conv.register_tile import RegisterTile
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.kernels import MAD_ENABLE
from clgraft.core.planning.launches import Accumulate, Buffer, Launch, Workspace, ints
from clgraft.core.problem import ceil_div, round_up

FILE = "conv/gemm_cpu/partial_sums.cl"
COSTS = costs("filter")
SUM_RANGE = 64  # most rows of a work-item that adds the splits


def splits_cycles(splits: int) -> float:
    """Estimate the cycles to write, read and add the parts of one element of a gradient."""
    return splits / COSTS["splits_per_cycle"] + COSTS["result"]


def sum_of_partials(
    problem: ConvProblem,
    planner: Planner,
    partial: Workspace,
    splits: int,
    tile: RegisterTile,
    turned: bool = False,
) -> Launch:
    """Return the launch that adds the parts of a filter's gradient, which lie one after the other, in their order.

    Parameters
    ----------
    problem : ConvProblem
    planner : Planner
    partial : Workspace
        (splits, groups, tiles of output channels, rows of the weights' matrix, columns of a tile).
    splits : int
    tile : RegisterTile
    turned : bool
        Whether rows and columns of partial are those of dw: (splits, groups, tiles of columns, output channels, columns
        of a tile).
    """
    groups, depth = problem.groups, forward_grid(problem).taps * (problem.in_channels // problem.groups)
    outputs = problem.out_channels // groups
    rows, columns = (outputs, depth) if turned else (depth, outputs)
    counts = (rows, columns) if turned else (columns, rows)
    column_tiles = ceil_div(columns, tile.columns)
    of_core = ceil_div(rows * column_tiles * groups, planner.device.compute_units)
    item_rows = min(round_up(of_core, tile.lanes), SUM_RANGE)
    return Launch(
        planner.kernel(
            FILE,
            "add_splits" if turned else "sum_partials",
            {"VL": tile.lanes, "HALF_VL": tile.lanes // 2},
            problem.dtype,
            MAD_ENABLE,
        ),
        (ceil_div(rows, item_rows), column_tiles, groups),
        (1, 1, 1),
        (partial, Buffer("dw"), Accumulate("dw"), *ints(splits, groups, *counts, tile.columns, item_rows)),
        ("dw",),
    )
