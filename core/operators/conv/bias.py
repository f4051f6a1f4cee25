"""Gradient of the bias: a fold of dy over batch and pixels, by the pointwise generator."""

from __future__ import annotations

import math

from clgraft.core.errors import Declined
from clgraft.core.operators.conv.problem import ConvProblem
from clgraft.core.operators.pointwise.expression import read_assignments
from clgraft.core.operators.pointwise.generate import generate
from clgraft.core.operators.pointwise.loop import Loop, Operand, Result
from clgraft.core.operators.pointwise.problem import Reduction, read_fold
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.launches import Buffer, Launches
from clgraft.core.problem.layout import LAST

NAME = "bias"


def plan(problem: ConvProblem, planner: Planner) -> Launches:
    """Plan the sum of dy over everything but channels."""
    if problem.direction != "backward_bias":
        raise Declined(f"direction {problem.direction}, not backward_bias")
    pixels = math.prod(problem.out_size)
    channels = problem.out_channels
    last = problem.layout == LAST
    loop = Loop(
        shape=(problem.batch * pixels, channels, 1) if last else (problem.batch, channels, pixels),
        assignments=read_assignments("y0 = x0;", 1, ()),
        inputs={0: Operand(Buffer("dy"), (channels, 1, 1) if last else (channels * pixels, pixels, 1))},
        outputs={0: Result(Buffer("db"), "db", read_fold(Reduction("sum")))},
        folded=(0, 2),
        dtype=problem.dtype,
    )
    launches = generate(planner, loop)
    return Launches(tuple(launches.items), launches.workspace_bytes)
