"""Interpolation on CPU devices: a work-item per some rows of the result."""

from __future__ import annotations

import numpy as np

from clgraft.core.errors import Declined
from clgraft.core.operators.interpolation.elements import FILE, macros, tables
from clgraft.core.operators.interpolation.problem import InterpolationProblem
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.launches import Accumulate, Buffer, Constant, Launch, Launches
from clgraft.core.problem import ceil_div

NAME = "rows"

ITEMS_PER_UNIT = 8  # work-items per core, so that no core waits long for the last one
ITEM_ELEMENTS = 4096  # a work-item with fewer elements is not worth its start


def plan(problem: InterpolationProblem, planner: Planner) -> Launches:
    """Plan the tables and a work-item per some rows."""
    if not planner.device.is_cpu:
        raise Declined("is for CPU devices")
    source, result = problem.arguments()
    width = result.shape[-1]
    rows = result.size // width
    item_rows = max(ceil_div(rows, planner.device.compute_units * ITEMS_PER_UNIT), min(rows, ITEM_ELEMENTS // width), 1)
    first, bound, workspace = tables(problem, planner)
    kernel = planner.kernel(FILE, f"interpolation_rows_{problem.direction}", macros(problem), problem.dtype)
    arguments = (
        *(Buffer(source.name), Buffer(result.name), Accumulate(result.name), *bound),
        *(Constant(np.uint64(number)) for number in (rows, item_rows)),
    )
    last = Launch(kernel, (ceil_div(rows, item_rows),), (1,), arguments, (result.name,))
    return Launches((first, last), workspace)
