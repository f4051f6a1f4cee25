"""Resampling with a work-item per element of the result, for all devices."""

from __future__ import annotations

import numpy as np

from clgraft.core.operators.resampling.problem import ResampleProblem
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.launches import Accumulate, Buffer, Constant, Launch, Launches
from clgraft.core.problem import round_up

NAME = "elements"
GROUP = 64


def plan(problem: ResampleProblem, planner: Planner) -> Launches:
    """Plan one launch."""
    kernel = planner.kernel("resampling/resample.cl", "resample_elements", {}, problem.dtype)
    sizes = (problem.outer, problem.in_extent, problem.out_extent, problem.inner, problem.taps)
    numbers = tuple(Constant(np.uint64(size)) for size in sizes)
    buffers = (Buffer("x"), Buffer("index"), Buffer("weight"), Buffer("y"), Accumulate("y"))
    items = round_up(problem.arguments()[-1].size, GROUP)
    return Launches((Launch(kernel, (items,), (GROUP,), (*buffers, *numbers), ("y",)),))
