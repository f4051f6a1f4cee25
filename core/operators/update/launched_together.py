"""Updates of several arrays, some in one launch: a work-group has a part of one array."""

from __future__ import annotations

from typing import Any

import numpy as np

from clgraft.core.operators.update.together import UpdatesProblem
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.launches import ARGUMENTS, TENSOR, Buffer, Constant, Launch, Launches, Scalar
from clgraft.core.problem import ceil_div

NAME = "together"
GROUP = 256
TILE = 4096  # elements of a work-group
SIZE = 8  # bytes of a number of elements


def plan(problem: UpdatesProblem, planner: Planner) -> Launches:
    """Plan a launch for as many arrays as its arguments have room for."""
    real = "float64" if problem.dtype == "float64" else "float32"
    number = np.dtype(real).itemsize
    vectors = len(problem.step.inputs) - len(problem.shared)
    fixed = TENSOR * len(problem.shared) + number * (len(problem.step.scalars()) - len(problem.own))
    room = ARGUMENTS - fixed
    most = max(1, room // (TENSOR * vectors + number * len(problem.own) + 2 * SIZE))
    arrays = [a for a, size in enumerate(problem.sizes) if size]
    starts = range(0, len(arrays), most)
    return Launches(tuple(_launch(problem, planner, arrays[start : start + most], real) for start in starts))


def _launch(problem: UpdatesProblem, planner: Planner, arrays: list[int], real: str) -> Launch:
    single = problem.shared
    vectors = [i for i in range(len(problem.step.inputs)) if i not in single]
    shared = [name for name in problem.step.scalars() if name not in problem.own]
    bound: list[Any] = [Buffer(f"x{i}") for i in single]
    bound += [Scalar(name, real) for name in shared]
    groups = 0
    for a in arrays:
        names = problem.named(a)
        bound += [Buffer(names[f"x{i}"]) for i in vectors]
        bound += [Scalar(f"{name}_{a}", real) for name in problem.own]
        bound += [Constant(np.uint64(problem.sizes[a])), Constant(np.uint64(groups))]
        groups += ceil_div(problem.sizes[a], TILE)
    outputs = tuple(range(problem.step.assignments.outputs))
    kinds = ["real" if f"x{i}" in problem.step.float32_arguments else "stored" for i in range(len(problem.step.inputs))]
    defines = {
        "BODY": problem.step.assignments.c_text(outputs),
        "VECTORS(F, array_)": " ".join(f"F({i}, {kinds[i]}, array_)" for i in vectors),
        "SINGLES(F)": " ".join(f"F({i}, {kinds[i]})" for i in single),
        "STATES(F)": " ".join(f"F({n}, {i}, {kinds[i]})" for n, i in enumerate(problem.states)),
        "SHARED(F)": " ".join(f"F({name})" for name in shared),
        "OWN(F, array_)": " ".join(f"F({name}, array_)" for name in problem.own),
        "MORE_ARRAYS(F)": " ".join(f"F({i})" for i in range(1, len(arrays))),
        "GROUP": GROUP,
        "TILE": TILE,
    }
    kernel = planner.kernel("update/together.cl", "update_together", defines, problem.dtype)
    writes = tuple(problem.named(a)[f"x{i}"] for a in arrays for i in problem.states)
    return Launch(kernel, (groups * GROUP,), (GROUP,), tuple(bound), writes)
