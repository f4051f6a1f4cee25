"""Cumulative sums and products with a work-item per line, for all devices."""

from __future__ import annotations

import numpy as np

from clgraft.core.operators.cumulative.problem import CumulativeProblem
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.launches import Accumulate, Buffer, Constant, Launch, Launches
from clgraft.core.problem import round_up

NAME = "lines"
GROUP = 16


def plan(problem: CumulativeProblem, planner: Planner) -> Launches:
    """Plan one launch."""
    macros = {
        "PRODUCT": int(problem.operator == "product"),
        "EXCLUSIVE": int(problem.exclusive),
        "REVERSE": int(problem.reverse),
    }
    kernel = planner.kernel("cumulative/cumulative.cl", "cumulative_lines", macros, problem.dtype)
    numbers = tuple(Constant(np.uint64(size)) for size in (problem.outer, problem.extent, problem.inner))
    arguments = (Buffer("x"), Buffer("y"), Accumulate("y"), *numbers)
    items = round_up(problem.outer * problem.inner, GROUP)
    return Launches((Launch(kernel, (items,), (GROUP,), arguments, ("y",)),))
