"""Sampled images with a work-item per element of the result, for all devices."""

from __future__ import annotations

import numpy as np

from clgraft.core.operators.sampling.problem import METHODS, PADDINGS, GridSampleProblem
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.launches import Accumulate, Buffer, Constant, Launch, Launches, ints
from clgraft.core.planning.sizes import SIZES, sizes_argument
from clgraft.core.problem import round_up

NAME = "elements"
GROUP = 16


def plan(problem: GridSampleProblem, planner: Planner) -> Launches:
    """Plan one launch."""
    macros = {
        "METHOD": METHODS.index(problem.method),
        "PADDING": PADDINGS.index(problem.padding),
        "ALIGN_CORNERS": int(problem.align_corners),
        "NDIM": problem.ndim,
        **SIZES.defines(),
    }
    kernel = planner.kernel("sampling/gridsample.cl", "gridsample_elements", macros, problem.dtype)
    count = problem.arguments()[-1].size
    sizes = sizes_argument(problem.in_size, problem.out_size)
    buffers = (Buffer("x"), Buffer("grid"), Buffer("y"), Accumulate("y"))
    arguments = (*buffers, *ints(problem.channels), sizes, Constant(np.uint64(count)))
    return Launches((Launch(kernel, (round_up(count, GROUP),), (GROUP,), arguments, ("y",)),))
