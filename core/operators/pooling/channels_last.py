"""Pooling in channels last by the kernels of channels first: channels are one more axis, of which windows hold one.

A row of such a plane is the channels of a pixel, so the kernels' vectors run along channels.
"""

from __future__ import annotations

from dataclasses import replace

from clgraft.core.errors import Declined
from clgraft.core.operators.pooling.problem import PoolProblem
from clgraft.core.planning.delegation import delegate
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.launches import Launches
from clgraft.core.problem.layout import FIRST

NAME = "channels_as_rows"


def plan(problem: PoolProblem, planner: Planner) -> Launches:
    """Plan the pooling of planes with one axis more."""
    if problem.direction == "mask":
        raise Declined("counts other places than a mask has")
    if problem.ndim > 2:
        raise Declined("has no axis left for the channels in 3-D")
    if planner.device.is_cpu and problem.ndim == 2 and problem.direction == "backward":
        raise Declined("CPU devices have no fast gradients in 3-D, which this would be")
    planes = replace(
        problem,
        channels=1,
        in_size=(*problem.in_size, problem.channels),
        kernel=(*problem.kernel, 1),
        stride=(*problem.stride, 1),
        pad_begin=(*problem.pad_begin, 0),
        pad_end=(*problem.pad_end, 0),
        layout=FIRST,
    )
    return delegate(planner, planes, {})
