"""Gather with a work-item per element of the result, for all devices."""

from __future__ import annotations

import numpy as np

from clgraft.core.operators.indexing.problem import SHARINGS, GatherProblem
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.launches import Accumulate, Buffer, Constant, Launch, Launches
from clgraft.core.problem import round_up

NAME = "elements"
FILE = "indexing/indexing.cl"
GROUP = 64


def plan(problem: GatherProblem, planner: Planner) -> Launches:
    """Plan one launch."""
    macros = {"SHARING": SHARINGS.index(problem.sharing)}
    kernel = planner.kernel(FILE, "gather_elements", macros, problem.dtype)
    sizes = (problem.outer, problem.extent, problem.inner, problem.count)
    numbers = tuple(Constant(np.uint64(size)) for size in sizes)
    arguments = (Buffer("x"), Buffer("index"), Buffer("y"), Accumulate("y"), *numbers)
    items = round_up(problem.arguments()[-1].size, GROUP)
    return Launches((Launch(kernel, (items,), (GROUP,), arguments, ("y",)),))
