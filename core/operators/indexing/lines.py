"""Scatter with a work-item per line along the axis, which takes in its updates one after the other."""

from __future__ import annotations

import numpy as np

from clgraft.core.operators.indexing.elements import FILE
from clgraft.core.operators.indexing.problem import OPERATORS, SHARINGS, ScatterProblem
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.launches import Accumulate, Buffer, Constant, Launch, Launches, Workspace
from clgraft.core.problem import round_up

NAME = "lines"
GROUP = 16


def plan(problem: ScatterProblem, planner: Planner) -> Launches:
    """Plan one launch; the lines are built in the workspace."""
    macros = {
        "SHARING": SHARINGS.index(problem.sharing),
        "OPERATOR": OPERATORS.index(problem.operator),
        "ONTO_ZERO": int(problem.onto_zero),
    }
    kernel = planner.kernel(FILE, "scatter_lines", macros, problem.dtype)
    sizes = (problem.outer, problem.extent, problem.inner, problem.count)
    numbers = tuple(Constant(np.uint64(size)) for size in sizes)
    itemsize = 8 if problem.dtype == "float64" else 4
    start = Buffer("updates" if problem.onto_zero else "x")
    arguments = (start, Buffer("index"), Buffer("updates"), Buffer("y"), Accumulate("y"), Workspace(0, itemsize))
    items = round_up(problem.outer * problem.inner, GROUP)
    launch = Launch(kernel, (items,), (GROUP,), (*arguments, *numbers), ("y",))
    return Launches((launch,), problem.arguments()[-1].size * itemsize)
