"""Pooling with a work-item per result: for every problem, and the choice of GPUs."""

from __future__ import annotations

import numpy as np

from clgraft.core.operators.pooling.arguments import WINDOWS, operator_macros, windows_argument
from clgraft.core.operators.pooling.problem import PoolProblem
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.launches import Accumulate, Buffer, Constant, Launch, Launches
from clgraft.core.problem import ceil_div

NAME = "elements"

GROUP = 64
SMALL = 2**31  # elements that 32-bit indices count, the last group's surplus work-items among them


def bind(problem: PoolProblem) -> tuple[Buffer | Accumulate, ...]:
    """Return the kernels' first parameters. Backward's x and y, where nothing reads them, are dy once more."""
    names = [argument.name for argument in problem.arguments()]
    surplus = ["dy", "dy"] if names[0] == "dy" else []
    return (*(Buffer(name) for name in surplus + names), *map(Accumulate, outputs(problem)))


def outputs(problem: PoolProblem) -> tuple[str, ...]:
    """Return the names of the results."""
    return tuple(argument.name for argument in problem.arguments() if argument.role == "out")


def plan(problem: PoolProblem, planner: Planner) -> Launches:
    """Plan one launch with a work-item per element of the result."""
    arguments = problem.arguments()
    output = arguments[-1]
    wide = max(argument.size for argument in arguments) > SMALL
    macros = {**operator_macros(problem), "WIDE": int(wide), **WINDOWS.defines()}
    direction, _, argmax = problem.direction.partition("_")
    macros.update({"ARGMAX": 1} if argmax else {})
    kernel = planner.kernel("pooling/elements.cl", f"pool_{direction}", macros, problem.dtype)
    bound = (*bind(problem), windows_argument(problem), Constant(np.uint64(output.size)))
    groups = ceil_div(output.size, GROUP)
    return Launches((Launch(kernel, (groups * GROUP,), (GROUP,), bound, outputs(problem)),))
