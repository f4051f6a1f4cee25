"""Pooling with a work-item per result: for every problem, and the choice of GPUs."""

from __future__ import annotations

import numpy as np

from clgraft.core.operators.pooling.problem import OPERATORS, PoolProblem
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.launches import Accumulate, Buffer, Constant, Launch, Launches
from clgraft.core.problem import ceil_div, in_3d

NAME = "elements"

GROUP = 64
SMALL = 2**31  # elements that 32-bit indices count, the last group's surplus work-items among them


def ends(problem: PoolProblem) -> tuple[int, ...]:
    """Return where the padded input ends, counted from the input's first element."""
    return tuple(i + q for i, q in zip(problem.in_size, problem.pad_end))


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
    macros = {"OPERATOR": OPERATORS.index(problem.operator), "WIDE": int(wide)}
    direction, _, argmax = problem.direction.partition("_")
    macros.update({"ARGMAX": 1} if argmax else {})
    kernel = planner.kernel("pooling/elements.cl", f"pool_{direction}", macros, problem.dtype)
    sizes = (
        *in_3d(problem.in_size, 1),
        *in_3d(problem.out_size, 1),
        *in_3d(problem.kernel, 1),
        *in_3d(problem.stride, 1),
        *in_3d(problem.pad_begin, 0),
        *in_3d(ends(problem), 1),
        problem.count_padding,
    )
    bound = (
        *bind(problem),
        *(Constant(np.int32(size)) for size in sizes),
        Constant(np.uint64(output.size)),
    )
    groups = ceil_div(output.size, GROUP)
    return Launches((Launch(kernel, (groups * GROUP,), (GROUP,), bound, outputs(problem)),))
