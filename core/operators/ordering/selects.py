"""The first of many elements with a work-group per line, which finds the last of them by the digits of its number."""

from __future__ import annotations

import numpy as np

from clgraft.core.errors import Declined
from clgraft.core.operators.ordering.problem import TopKProblem
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.launches import Accumulate, Buffer, Constant, Launch, Launches
from clgraft.core.planning.workspace import WorkspaceLayout

NAME = "selects"
GROUP = 64
LEAST = 1024  # elements of a line; of fewer, ranks of all elements are less work
SHARE = 4  # and so many for each that is wanted


def plan(problem: TopKProblem, planner: Planner) -> Launches:
    """Plan one launch."""
    if problem.extent < max(LEAST, SHARE * problem.k):
        raise Declined(f"is for at least {LEAST} elements, and {SHARE} for each that is wanted")
    layout, lines = WorkspaceLayout(), problem.outer * problem.inner
    chosen = layout.take(lines * problem.k * 4)
    macros = {"SMALLEST": int(problem.smallest), "LAST": int(problem.last), "GROUP": GROUP}
    kernel = planner.kernel("ordering/topk.cl", "topk_selects", macros, problem.dtype)
    sizes = (problem.outer, problem.extent, problem.inner, problem.k)
    numbers = tuple(Constant(np.uint64(size)) for size in sizes)
    arguments = (Buffer("x"), Buffer("y"), Buffer("index"), Accumulate("y"), Accumulate("index"), *numbers, chosen)
    launch = Launch(kernel, (lines * GROUP,), (GROUP,), arguments, ("y", "index"))
    return Launches((launch,), layout.nbytes)
