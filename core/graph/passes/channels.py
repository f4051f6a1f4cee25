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
    return problem.out_channels, 1 if problem.layout == LAST else math.prod(problem.out_size)
