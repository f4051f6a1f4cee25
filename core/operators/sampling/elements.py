"""Sampled images with a work-item per element of the result, for all devices."""

from __future__ import annotations

import numpy as np

from clgraft.core.operators.sampling.problem import METHODS, PADDINGS, GridSampleProblem
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.launches import Accumulate, Buffer, Constant, Launch, Launches, ints
from clgraft.core.problem import in_3d, round_up

NAME = "elements"
GROUP = 16


def plan(problem: GridSampleProblem, planner: Planner) -> Launches:
    """Plan one launch."""
    macros = {
        "METHOD": METHODS.index(problem.method),
        "PADDING": PADDINGS.index(problem.padding),
        "ALIGN_CORNERS": int(problem.align_corners),
        "NDIM": problem.ndim,
    }
    kernel = planner.kernel("sampling/gridsample.cl", "gridsample_elements", macros, problem.dtype)
    count = problem.arguments()[-1].size
    sizes = ints(problem.channels, *in_3d(problem.in_size, 1), *in_3d(problem.out_size, 1))
    arguments = (Buffer("x"), Buffer("grid"), Buffer("y"), Accumulate("y"), *sizes, Constant(np.uint64(count)))
    return Launches((Launch(kernel, (round_up(count, GROUP),), (GROUP,), arguments, ("y",)),))
