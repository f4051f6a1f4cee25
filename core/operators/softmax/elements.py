"""Softmax with a work-item per image and pixel, for every problem."""

from __future__ import annotations

from typing import Any

import numpy as np

from clgraft.core.operators.softmax.problem import SoftmaxProblem
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.launches import Accumulate, Buffer, Constant, Launch, Launches, Scalar
from clgraft.core.problem import round_up

NAME = "elements"

LOCAL = 64


def plan(problem: SoftmaxProblem, planner: Planner) -> Launches:
    """Plan one launch."""
    images, channels, pixels = problem.images, problem.channels, problem.pixels
    macros = {"LOG": int(problem.log)}
    kernel = planner.kernel("softmax/softmax.cl", f"softmax_elements_{problem.direction}", macros, problem.dtype)
    names = [argument.name for argument in problem.arguments()]
    arguments: list[Any] = [
        *(Buffer(name) for name in names),
        Accumulate(names[-1]),
        Scalar("scale", "float64" if problem.dtype == "float64" else "float32"),
        *(Constant(np.int64(size)) for size in (images, channels, pixels)),
    ]
    return Launches((Launch(kernel, (round_up(images * pixels, LOCAL),), (LOCAL,), tuple(arguments), (names[-1],)),))
