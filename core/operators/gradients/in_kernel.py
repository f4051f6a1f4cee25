"""Both gradients of a depthwise convolution in one launch on CPU devices."""

from __future__ import annotations

from clgraft.core.errors import Declined
from clgraft.core.operators.conv.depthwise import cpu_gradients
from clgraft.core.operators.gradients.problem import GradientsProblem
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.launches import Launches

NAME = "in_kernel"


def plan(problem: GradientsProblem, planner: Planner) -> Launches:
    """Plan one launch; a second one adds up the filter's gradient if the images are split."""
    if problem.conv.layout != "nchw":
        raise Declined(f"serves layout nchw, got {problem.conv.layout}")
    return cpu_gradients.plan_gradients(problem.conv, planner, data=True)
