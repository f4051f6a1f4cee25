"""The first elements with a work-item per element, which counts the elements that come before its own."""

from __future__ import annotations

import numpy as np

from clgraft.core.operators.ordering.problem import TopKProblem
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.launches import Accumulate, Buffer, Constant, Launch, Launches
from clgraft.core.problem import round_up

NAME = "ranks"
GROUP = 16


def plan(problem: TopKProblem, planner: Planner) -> Launches:
    """Plan one launch."""
    return bind(problem, planner, "topk_ranks", problem.outer * problem.extent * problem.inner)


def bind(problem: TopKProblem, planner: Planner, name: str, items: int) -> Launches:
    """Return a kernel's launch for some work-items."""
    macros = {"SMALLEST": int(problem.smallest), "LAST": int(problem.last)}
    kernel = planner.kernel("ordering/topk.cl", name, macros, problem.dtype)
    sizes = (problem.outer, problem.extent, problem.inner, problem.k)
    numbers = tuple(Constant(np.uint64(size)) for size in sizes)
    arguments = (Buffer("x"), Buffer("y"), Buffer("index"), Accumulate("y"), Accumulate("index"), *numbers)
    return Launches((Launch(kernel, (round_up(items, GROUP),), (GROUP,), arguments, ("y", "index")),))
