"""Gradient of the bias: a fold of dy over batch and pixels, by the pointwise generator."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from clgraft.core.conv.problem import ConvProblem
from clgraft.core.errors import Declined
from clgraft.core.plan import Buffer, Steps
from clgraft.core.pointwise.expression import read_program
from clgraft.core.pointwise.generate import Loop, generate
from clgraft.core.pointwise.loop import Operand, Result
from clgraft.core.pointwise.problem import Reduction, read_fold

if TYPE_CHECKING:
    from clgraft.core.context import Context

NAME = "bias"


def plan(problem: ConvProblem, context: Context) -> Steps:
    """Plan the sum of dy over everything but channels."""
    if problem.direction != "backward_bias":
        raise Declined(f"direction {problem.direction}, not backward_bias")
    pixels = math.prod(problem.out_size)
    channels = problem.out_channels
    loop = Loop(
        shape=(problem.batch, channels, pixels),
        program=read_program("y0 = x0;", 1, ()),
        inputs={0: Operand(Buffer("dy"), (channels * pixels, pixels, 1))},
        outputs={0: Result(Buffer("db"), "db", read_fold(Reduction("sum")))},
        folded=(0, 2),
        dtype=problem.dtype,
    )
    launches = generate(context, loop)
    return Steps(tuple(launches.items), launches.workspace_bytes)
