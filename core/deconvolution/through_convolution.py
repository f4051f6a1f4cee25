"""Deconvolution by the convolution's kernels: each direction is another one of the convolution that it transposes."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from clgraft.core.conv.problem import ConvProblem
from clgraft.core.deconvolution.problem import DeconvProblem
from clgraft.core.delegation import add_vector, delegate
from clgraft.core.plan import Steps

if TYPE_CHECKING:
    from clgraft.core.context import Context

NAME = "through_convolution"
# the convolution's argument -> this one's
NAMES = {
    "forward": {"dy": "x", "dx": "y"},
    "backward_data": {"x": "dy", "y": "dx"},
    "backward_filter": {"x": "dy", "dy": "x"},
    "backward_bias": {},
}


def plan(problem: DeconvProblem, context: Context) -> Steps:
    """Plan the convolution's direction with the roles exchanged; a bias is added in a pass of its own."""
    convolution = problem.convolution
    if problem.direction == "backward_bias":  # a sum over dy, which is this one's output
        channels = problem.out_channels
        convolution = ConvProblem(
            direction="backward_bias",
            batch=problem.batch,
            in_channels=channels,
            out_channels=channels,
            in_size=problem.out_size,
            kernel=(1,) * problem.ndim,
            dtype=problem.dtype,
        )
    steps = delegate(context, convolution, NAMES[problem.direction])
    if problem.bias:
        shape = (problem.batch, problem.out_channels, prod(problem.out_size))
        steps = add_vector(context, steps, "b", "y", shape, 1, problem.dtype)
    return steps
