"""Pooling of whole images in channels last on CPU devices: a value for each channel, vectors run along channels."""

from __future__ import annotations

from typing import Any

import numpy as np

from clgraft.core.errors import Declined
from clgraft.core.operators.pooling.arguments import operator_macros
from clgraft.core.operators.pooling.elements import bind
from clgraft.core.operators.pooling.problem import NORMS, PoolProblem
from clgraft.core.operators.pooling.whole import pixels_and_divisor
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.kernels import has_32_registers, vector_lanes
from clgraft.core.planning.launches import Constant, Launch, Launches, ints
from clgraft.core.problem import ceil_div, round_up

NAME = "channels_whole"
ITEMS_PER_UNIT = 8  # work-items per core, so that no core waits long for the last one
ITEM_ELEMENTS = 8192  # fewer are not worth a work-item's start


def plan(problem: PoolProblem, planner: Planner) -> Launches:
    """Plan one launch over images and ranges of their channels."""
    if not planner.device.is_cpu:
        raise Declined("is for CPU devices")
    if problem.direction not in ("forward", "backward") or (
        problem.direction == "backward" and problem.operator in NORMS
    ):
        raise Declined(f"has no {problem.direction} of {problem.operator}")
    pixels, divisor = pixels_and_divisor(problem)
    channels = problem.channels
    if channels < 2 or not problem.batch:
        raise Declined(f"got {problem.batch} images of {channels} channels, expected several channels")
    lanes = min(vector_lanes(planner.device, problem.dtype), 1 << (channels.bit_length() - 1))
    block = 8 if has_32_registers(planner.device) else 4
    wanted = ceil_div(planner.device.compute_units * ITEMS_PER_UNIT, problem.batch)
    vectors = max(ceil_div(channels // lanes, wanted), ceil_div(ITEM_ELEMENTS, pixels * lanes))
    item_channels = min(round_up(vectors, block) if vectors > block else vectors, channels // lanes) * lanes
    items = channels // item_channels
    macros = {**operator_macros(problem), "VL": lanes, "BLOCK": block}
    name = f"pool_whole_channels_{problem.direction}"
    kernel = planner.kernel("pooling/whole_channels.cl", name, macros, problem.dtype)
    arguments: list[Any] = [*bind(problem), *ints(channels, items, item_channels)]
    arguments += [Constant(np.int64(size)) for size in (pixels, divisor)]
    output = problem.arguments()[-1].name
    return Launches((Launch(kernel, (problem.batch * items,), (1,), tuple(arguments), (output,)),))
