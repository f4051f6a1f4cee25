"""Sums over several arrays in a few launches: work-groups add up tiles, and in the last one the tiles' sums."""

from __future__ import annotations

from typing import Any

import numpy as np

from clgraft.core.operators.totals.problem import TotalsProblem
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.launches import (
    ARGUMENTS,
    TENSOR,
    Accumulate,
    Buffer,
    Constant,
    Launch,
    Launches,
    Scalar,
    Workspace,
)
from clgraft.core.problem import ceil_div

NAME = "tiles"
GROUP = 256
FILE = "totals/parts.cl"
TILE = 8192  # elements of a work-group


def plan(problem: TotalsProblem, planner: Planner) -> Launches:
    """Plan the tiles' sums, in launches that have room for their arguments, and the launch that adds them up."""
    real = "float64" if problem.dtype == "float64" else "float32"
    itemsize = np.dtype(real).itemsize
    shared: list[Any] = [Scalar(name, real) for name in problem.scalars()]
    room = ARGUMENTS - (len(shared) + 1) * TENSOR
    most, arrays = max(1, room // (2 * TENSOR)), [a for a, size in enumerate(problem.sizes) if size]
    launches, groups = [], 0
    for start in range(0, len(arrays), most):
        bound, first, kinds = list(shared), groups, []
        for i, a in enumerate(arrays[start : start + most]):
            sizes = (Constant(np.uint64(problem.sizes[a])), Constant(np.uint64(groups - first)))
            bound += [Buffer(f"x0_{a}"), *sizes]
            kinds.append(f"F({i}, {_kind(problem, f'x0_{a}')})")
            groups += ceil_div(problem.sizes[a], TILE)
        defines = {
            "BODY": problem.step.assignments.c_text((0,)),
            "FIRST(F)": kinds[0],
            "ARRAYS(F)": " ".join(kinds[1:]),
            "SHARED(F)": " ".join(f"F({name})" for name in problem.scalars()),
            "GROUP": GROUP,
            "TILE": TILE,
        }
        kernel = planner.kernel(FILE, "totals_parts", defines, problem.dtype)
        bound.append(Workspace(first * itemsize, itemsize))
        launches.append(Launch(kernel, ((groups - first) * GROUP,), (GROUP,), tuple(bound), ("y0",)))
    last = planner.kernel(FILE, "totals_sum", {"GROUP": GROUP, "SUM": 1, "RESULT": _kind(problem, "y0")}, problem.dtype)
    result = (Workspace(0, itemsize), Constant(np.uint64(groups)), Buffer("y0"), Accumulate("y0"))
    return Launches((*launches, Launch(last, (GROUP,), (GROUP,), result, ("y0",))), max(groups, 1) * itemsize)


def _kind(problem: TotalsProblem, name: str) -> str:
    """Return how a kernel calls the type of an argument's elements."""
    return "real" if problem.type_of(name) != problem.dtype else "stored"
