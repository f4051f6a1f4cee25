"""Where a layer has the channels of its result: for passes that move per-channel work into the layer."""

from __future__ import annotations

import math

from clgraft.core.operators.conv import ConvProblem
from clgraft.core.operators.dense import DenseProblem
from clgraft.core.problem.layout import LAST


def channels_of(problem: ConvProblem | DenseProblem) -> tuple[int, int]:
    """Return how many channels a layer's result has, and how many elements lie from one to the next."""
    if isinstance(problem, DenseProblem):
        return problem.outputs, 1
    forward = problem.direction == "forward"
    channels, size = (problem.out_channels, problem.out_size) if forward else (problem.in_channels, problem.in_size)
    return channels, 1 if problem.layout == LAST else math.prod(size)
