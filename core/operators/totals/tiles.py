"""Sums over several arrays in two launches: work-groups add up tiles, and one of them the tiles' sums."""

from __future__ import annotations

from typing import Any

import numpy as np

from clgraft.core.operators.totals.problem import TotalsProblem
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.launches import Accumulate, Buffer, Constant, Launch, Launches, Scalar, Workspace
from clgraft.core.problem import ceil_div

NAME = "tiles"
GROUP = 256
TILE = 8192  # elements of a work-group


def plan(problem: TotalsProblem, planner: Planner) -> Launches:
    """Plan both launches."""
    real = "float64" if problem.dtype == "float64" else "float32"
    itemsize = np.dtype(real).itemsize
    partial = Workspace(0, itemsize)
    bound: list[Any] = [Scalar(name, real) for name in problem.scalars()]
    groups = 0
    arrays = [a for a, size in enumerate(problem.sizes) if size]
    for a in arrays:
        bound += [Buffer(f"x0_{a}"), Constant(np.uint64(problem.sizes[a])), Constant(np.uint64(groups))]
        groups += ceil_div(problem.sizes[a], TILE)
    kinds = [f"F({i}, {_kind(problem, f'x0_{a}')})" for i, a in enumerate(arrays)]
    defines = {
        "BODY": problem.step.assignments.c_text((0,)),
        "FIRST(F)": "".join(kinds[:1]),
        "ARRAYS(F)": " ".join(kinds[1:]),
        "SHARED(F)": " ".join(f"F({name})" for name in problem.scalars()),
        "GROUP": GROUP,
    }
    file = "totals/parts.cl"
    first = planner.kernel(file, "totals_parts", {**defines, "TILE": TILE}, problem.dtype)
    last = planner.kernel(file, "totals_sum", {"GROUP": GROUP, "SUM": 1, "RESULT": _kind(problem, "y0")}, problem.dtype)
    launches = [Launch(first, (groups * GROUP,), (GROUP,), (*bound, partial), ("y0",))] if arrays else []
    result = (partial, Constant(np.uint64(groups)), Buffer("y0"), Accumulate("y0"))
    return Launches((*launches, Launch(last, (GROUP,), (GROUP,), result, ("y0",))), max(groups, 1) * itemsize)


def _kind(problem: TotalsProblem, name: str) -> str:
    """Return how a kernel calls the type of an argument's elements."""
    return "real" if problem.type_of(name) != problem.dtype else "stored"
