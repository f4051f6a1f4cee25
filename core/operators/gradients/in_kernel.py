"""Both gradients of a depthwise convolution in one launch on CPU devices."""

from __future__ import annotations

from math import prod

from clgraft.core.errors import Declined
from clgraft.core.operators.conv.depthwise import cpu_fixed, cpu_gradients
from clgraft.core.operators.gradients.problem import GradientsProblem
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.launches import Launches

NAME = "in_kernel"
# pixels of planes at whose gradients of many taps two kernels are faster: from the first number on one launch more does
# not matter, up to the second `depthwise_fixed` computes the data's gradient in float32
APART = range(65, 4097)


def reserved(problem: GradientsProblem) -> str:
    """Return why the two gradients are computed apart: with many taps, both kinds of sums do not fit the registers."""
    conv = problem.conv
    taps, pixels = prod(conv.kernel), prod(conv.in_size)
    if max(conv.stride) > 1 or taps <= cpu_gradients.FEW_TAPS or pixels not in APART or conv.dtype == "float64":
        return ""
    return "" if cpu_fixed.reserved(conv) else f"is slower than both apart, got {taps} taps at stride 1"


def plan(problem: GradientsProblem, planner: Planner) -> Launches:
    """Plan one launch; a second one adds up the filter's gradient if the images are split."""
    if problem.conv.layout != "nchw":
        raise Declined(f"serves layout nchw, got {problem.conv.layout}")
    return cpu_gradients.plan_gradients(problem.conv, planner, data=True)
