"""Local response normalisation with a work-item per element: for every problem, and the choice of GPUs."""

from __future__ import annotations

from typing import Any

import numpy as np

from clgraft.core.operators.lrn.problem import LRNProblem
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.launches import Accumulate, Buffer, Constant, Launch, Launches, Scalar, Workspace
from clgraft.core.problem import round_up

NAME = "elements"

LOCAL = 64
POWERS = {0.75: 3, 0.5: 2, 1.0: 4}


def power(problem: LRNProblem) -> int:
    """Return the kernels' way to the power."""
    return POWERS.get(problem.beta, 0)


def bind_scalars(problem: LRNProblem) -> list[Any]:
    """Bind alpha, k and beta."""
    real = "float64" if problem.dtype == "float64" else "float32"
    return [Scalar("alpha", real), Scalar("k", real), Constant(np.dtype(real).type(problem.beta))]


def plan(problem: LRNProblem, planner: Planner) -> Launches:
    """Plan one launch forward, two backward."""
    macros = {"HALF": problem.size // 2, "POWER": power(problem)}
    sizes = (problem.images, problem.channels, problem.pixels)
    rest = [*bind_scalars(problem), *(Constant(np.int64(size)) for size in sizes)]
    count = problem.arguments()[0].size
    groups = (round_up(count, LOCAL),)

    def launch(name: str, *arguments: Any, writes: tuple[str, ...]) -> Launch:
        kernel = planner.kernel("lrn/lrn.cl", f"lrn_elements_{name}", macros, problem.dtype)
        return Launch(kernel, groups, (LOCAL,), (*arguments, *rest), writes)

    x, y, dy, dx = (Buffer(name) for name in ("x", "y", "dy", "dx"))
    if problem.direction == "forward":
        return Launches((launch("forward", x, y, Accumulate("y"), writes=("y",)),))
    itemsize = 8 if problem.dtype == "float64" else 4
    ratios = Workspace(0, itemsize)
    launches = (
        launch("ratios", x, dy, ratios, writes=("dx",)),
        launch("backward", x, dy, dx, Accumulate("dx"), ratios, writes=("dx",)),
    )
    return Launches(launches, count * itemsize)
