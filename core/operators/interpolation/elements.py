"""Interpolation with a work-item per element of some planes: for every problem, and the choice of GPUs."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from clgraft.core.operators.interpolation.problem import COORDINATES, ROUNDINGS, InterpolationProblem
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.launches import Accumulate, Buffer, Constant, Launch, Launches, Workspace
from clgraft.core.planning.sizes import SIZES, sizes_argument
from clgraft.core.problem import ceil_div, in_3d, round_up

NAME = "elements"

FILE = "interpolation/interpolation.cl"
GROUP = 64
PLANES = 4  # whose elements a work-item makes
MORE_PLANES = 8  # forward, where work-items are many
UNIT_ITEMS = 2048  # of a compute unit, which are many
COLUMNS = 4  # neighbouring elements of forward's work-items
SMALL = 2**31  # elements that 32-bit indices count, the last group's surplus work-items among them
ALIGN = 64  # bytes


def macros(problem: InterpolationProblem) -> dict[str, Any]:
    """Return the kernels' macros."""
    return {
        "LINEAR": int(problem.method == "linear"),
        "COORDINATES": COORDINATES.index(problem.coordinates),
        "ROUNDING": ROUNDINGS.index(problem.rounding),
        "WIDE": int(max(argument.size for argument in problem.arguments()) > SMALL),
        **SIZES.defines(),
    }


def tables(problem: InterpolationProblem, planner: Planner) -> tuple[Launch, tuple[Any, ...], int]:
    """Return the launch that writes the tables, the parameters of who reads them, and the bytes of the workspace."""
    inputs, outputs = sum(in_3d(problem.in_size, 1)), sum(in_3d(problem.out_size, 1))
    itemsize = 8 if problem.dtype == "float64" else 4
    parts, end = [], 0
    for count, size in ((outputs, 4), (outputs, itemsize), (inputs, 4), (inputs, 4)):
        parts.append(Workspace(end, size))
        end += round_up(count * size, ALIGN)
    bound = (*parts, sizes_argument(problem.in_size, problem.out_size))
    kernel = planner.kernel(FILE, "interpolation_tables", macros(problem), problem.dtype)
    group = 1 if planner.device.is_cpu else GROUP
    result = problem.arguments()[-1].name
    return Launch(kernel, (round_up(inputs + outputs, group),), (group,), bound, (result,)), bound, end


def plan(problem: InterpolationProblem, planner: Planner) -> Launches:
    """Plan the tables and a work-item per element."""
    source, result = problem.arguments()
    first, bound, workspace = tables(problem, planner)
    width = result.shape[-1]
    columns = COLUMNS if problem.direction == "forward" and width >= COLUMNS else 1
    quads = int(columns > 1 and width % COLUMNS == 0)
    grows = int(problem.method == "linear" and columns > 1 and width >= source.shape[-1])
    planes = problem.batch * problem.channels
    items = prod(result.shape[2:-1]) * ceil_div(width, columns)
    many = items * planes >= MORE_PLANES * UNIT_ITEMS * planner.device.compute_units and planes % MORE_PLANES == 0
    each = MORE_PLANES if many and problem.direction == "forward" else PLANES
    defines = {**macros(problem), "PLANES": each, "COLUMNS": columns, "QUADS": quads, "GROWS": grows}
    kernel = planner.kernel(FILE, f"interpolation_{problem.direction}", defines, problem.dtype)
    arguments = (
        *(Buffer(source.name), Buffer(result.name), Accumulate(result.name), *bound),
        Constant(np.uint64(planes)),
    )
    last = Launch(kernel, (round_up(items, GROUP), ceil_div(planes, each)), (GROUP, 1), arguments, (result.name,))
    return Launches((first, last), workspace)
