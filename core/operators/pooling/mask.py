"""The mask of a maximum: where in its plane each stands. For frameworks that hand it on (Caffe's second top)."""

from __future__ import annotations

import numpy as np

from clgraft.core.operators.pooling.problem import PoolProblem
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.launches import Accumulate, Buffer, Constant, Launch, Launches
from clgraft.core.problem import in_3d, round_up

NAME = "mask"

GROUP = 64


def plan(problem: PoolProblem, planner: Planner) -> Launches:
    """Plan one launch: with a work-item per row of windows on CPU devices, and else per window."""
    windows = problem.arguments()[-1].size
    strides = in_3d(problem.stride, 1)
    macros, items, group = {"SW": strides[2]}, windows // problem.out_size[-1], 1
    if not planner.device.is_cpu:
        macros, items, group = {}, round_up(windows, GROUP), GROUP
    kernel = planner.kernel("pooling/mask.cl", "pool_mask", macros, problem.dtype)
    sizes = (
        *in_3d(problem.in_size, 1),
        *in_3d(problem.out_size, 1),
        *in_3d(problem.kernel, 1),
        *strides,
        *in_3d(problem.pad_begin, 0),
    )
    bound = (
        *(Buffer(name) for name in ("x", "y", "mask")),
        Accumulate("mask"),
        *(Constant(np.int32(size)) for size in sizes),
        Constant(np.uint64(windows)),
    )
    return Launches((Launch(kernel, (items,), (group,), bound, ("mask",)),))
