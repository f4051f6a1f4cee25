"""The mask of a maximum: where in its plane each stands. For frameworks that hand it on (Caffe's second top)."""

from __future__ import annotations

import numpy as np

from clgraft.core.operators.pooling.arguments import WINDOWS, windows_argument
from clgraft.core.operators.pooling.problem import PoolProblem
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.launches import Accumulate, Buffer, Constant, Launch, Launches
from clgraft.core.problem import round_up

NAME = "mask"

GROUP = 64


def plan(problem: PoolProblem, planner: Planner) -> Launches:
    """Plan one launch: with a work-item per row of windows on CPU devices, and else per window."""
    windows = problem.arguments()[-1].size
    macros, items, group = {"SW": problem.stride[-1]}, windows // problem.out_size[-1], 1
    if not planner.device.is_cpu:
        macros, items, group = {}, round_up(windows, GROUP), GROUP
    kernel = planner.kernel("pooling/mask.cl", "pool_mask", {**macros, **WINDOWS.defines()}, problem.dtype)
    buffers = (Buffer("x"), Buffer("y"), Buffer("mask"), Accumulate("mask"))
    bound = (*buffers, windows_argument(problem), Constant(np.uint64(windows)))
    return Launches((Launch(kernel, (items,), (group,), bound, ("mask",)),))
