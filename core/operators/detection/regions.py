"""Regions of images with a work-item per element of the result, for all devices."""

from __future__ import annotations

import numpy as np

from clgraft.core.operators.detection.align import RoiAlignProblem
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.launches import Accumulate, Buffer, Constant, Launch, Launches, Scalar, ints
from clgraft.core.planning.sizes import SIZES, sizes_argument
from clgraft.core.problem import round_up

NAME = "elements"
GROUP = 16


def plan(problem: RoiAlignProblem, planner: Planner) -> Launches:
    """Plan one launch."""
    sampled = problem.operator != "pixels"
    if sampled:
        macros = {"MAXIMUM": int(problem.operator == "max"), "HALF_PIXEL": int(problem.half_pixel), **SIZES.defines()}
        kernel = planner.kernel("detection/roialign.cl", "roialign_elements", macros, problem.dtype)
    else:
        kernel = planner.kernel("detection/roipool.cl", "roipool_elements", SIZES.defines(), problem.dtype)
    real = "float64" if problem.dtype == "float64" else "float32"
    count = problem.arguments()[-1].size
    arguments = (
        *(Buffer("x"), Buffer("rois"), Buffer("image"), Buffer("y"), Accumulate("y"), Scalar("scale", real)),
        *ints(problem.batch, problem.channels),
        sizes_argument(problem.in_size, problem.out_size),
        *(ints(problem.samples) if sampled else ()),
        Constant(np.uint64(count)),
    )
    return Launches((Launch(kernel, (round_up(count, GROUP),), (GROUP,), arguments, ("y",)),))
