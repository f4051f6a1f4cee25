"""Softmax with a work-item per image and pixel: for every problem; and with a work-group per long row, for GPUs."""

from __future__ import annotations

from typing import Any

import numpy as np

from clgraft.core.operators.softmax.problem import SoftmaxProblem
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.launches import Accumulate, Buffer, Constant, Launch, Launches, Scalar
from clgraft.core.problem import round_up

NAME = "elements"

GROUP = 128  # work-items that share a row
FEWEST_CHANNELS = 64  # below, most of such a group would have nothing to do
LOCAL = 64


def plan(problem: SoftmaxProblem, planner: Planner) -> Launches:
    """Plan one launch."""
    images, channels, pixels = problem.images, problem.channels, problem.pixels
    device = planner.device
    grouped = not device.is_cpu and pixels == 1 and channels >= FEWEST_CHANNELS and device.max_work_group_size >= GROUP
    macros = {"LOG": int(problem.log), **({"GROUP": GROUP} if grouped else {})}
    shape = "groups" if grouped else "elements"
    kernel = planner.kernel("softmax/softmax.cl", f"softmax_{shape}_{problem.direction}", macros, problem.dtype)
    names = [argument.name for argument in problem.arguments()]
    arguments: list[Any] = [
        *(Buffer(name) for name in names),
        Accumulate(names[-1]),
        Scalar("scale", "float64" if problem.dtype == "float64" else "float32"),
        *(Constant(np.int64(size)) for size in (images, channels, pixels)),
    ]
    local = GROUP if grouped else LOCAL
    size = images * GROUP if grouped else round_up(images * pixels, LOCAL)
    return Launches((Launch(kernel, (size,), (local,), tuple(arguments), (names[-1],)),))
