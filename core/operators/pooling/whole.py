"""Pooling of whole planes to one value each: global pooling, and windows that hold all of the input."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from clgraft.core.errors import Declined
from clgraft.core.operators.pooling.elements import bind, ends
from clgraft.core.operators.pooling.problem import NORMS, OPERATORS, PoolProblem
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.launches import Constant, Launch, Launches
from clgraft.core.problem import ceil_div

NAME = "whole"

ITEMS_PER_UNIT = 8  # work-items per core, so that no core waits long for the last one
GROUP = 128  # work-items that share a plane on a GPU
FEWEST_PIXELS = 32  # below, most of such a group would have nothing to do


def plan(problem: PoolProblem, planner: Planner) -> Launches:
    """Plan one launch over the planes."""
    covered = all(k - p >= i for k, p, i in zip(problem.kernel, problem.pad_begin, problem.in_size))
    if set(problem.out_size) != {1} or not covered:
        raise Declined("is for windows that hold all of the input")
    planes, pixels = problem.batch * problem.channels, math.prod(problem.in_size)
    counted = (min(k, e + p) for k, e, p in zip(problem.kernel, ends(problem), problem.pad_begin))
    divisor = math.prod(counted) if problem.count_padding else pixels
    output = problem.arguments()[-1].name
    arguments: list[Any] = [*bind(problem)]
    macros = {"OPERATOR": OPERATORS.index(problem.operator)}
    if not planner.device.is_cpu:
        if problem.direction == "backward" or pixels < FEWEST_PIXELS or planner.device.max_work_group_size < GROUP:
            raise Declined(f"is for forward on GPUs, from {FEWEST_PIXELS} pixels")
        kernel = planner.kernel("pooling/whole.cl", "pool_whole_group", {**macros, "GROUP": GROUP}, problem.dtype)
        arguments += [Constant(np.int64(pixels)), Constant(np.int64(divisor))]
        return Launches((Launch(kernel, (planes * GROUP,), (GROUP,), tuple(arguments), (output,)),))
    if problem.direction == "backward" and problem.operator in NORMS:
        raise Declined("has no gradients of norms")
    lanes = max(2, planner.device.vector_width // (2 if problem.dtype == "float64" else 1))
    macros.update(VL=lanes, BACKWARD=int(problem.direction == "backward"))
    kernel = planner.kernel("pooling/whole.cl", f"pool_whole_{problem.direction}", macros, problem.dtype)
    item_planes = max(1, planes // (planner.device.compute_units * ITEMS_PER_UNIT))
    arguments += [Constant(np.int64(v)) for v in (planes, item_planes, pixels, divisor)]
    return Launches((Launch(kernel, (ceil_div(planes, item_planes),), (1,), tuple(arguments), (output,)),))
