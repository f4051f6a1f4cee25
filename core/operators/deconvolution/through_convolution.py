"""Deconvolution by the convolution's kernels: each direction is another one of the convolution that it transposes."""

from __future__ import annotations

from math import prod

from clgraft.core.operators.conv.problem import ConvProblem
from clgraft.core.operators.deconvolution.problem import DeconvProblem
from clgraft.core.operators.pointwise.add_vector import add_vector
from clgraft.core.planning.delegation import delegate
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.launches import Launches
from clgraft.core.problem.layout import LAST

NAME = "through_convolution"


def plan(problem: DeconvProblem, planner: Planner) -> Launches:
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
            layout=problem.layout,
        )
    launches = delegate(planner, convolution, problem.roles)
    if problem.bias:
        pixels = prod(problem.out_size)
        shape = (problem.batch, problem.out_channels, pixels)
        if problem.layout == LAST:
            shape = (problem.batch * pixels, problem.out_channels, 1)
        launches = add_vector(planner, launches, "b", "y", shape, 1, problem.dtype)
    return launches
