"""Pooling in channels last on GPUs, in one or two axes: a work-item has neighbouring channels of a pixel."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from clgraft.core.errors import Declined
from clgraft.core.operators.pooling.arguments import WINDOWS, operator_macros, windows_argument
from clgraft.core.operators.pooling.elements import bind, outputs
from clgraft.core.operators.pooling.problem import NORMS, PoolProblem
from clgraft.core.planning.division import divisor_argument
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.launches import Constant, Launch, Launches, ints
from clgraft.core.problem import ceil_div, in_3d

NAME = "pixels_gpu"
FOR_GPUS = True  # a search on a CPU device does not try it
FILE = "pooling/pixels_gpu.cl"
GROUP = 128
WIDE = 4  # channels of a work-item
LARGEST = 2**31 - 1


def plan(problem: PoolProblem, planner: Planner) -> Launches:
    """Plan one launch."""
    if planner.device.is_cpu:
        raise Declined("is for GPUs")
    if problem.ndim > 2:
        raise Declined("is for one or two axes")
    searches = problem.direction == "backward" and problem.operator == "max"
    if problem.direction == "mask" or searches or (problem.direction == "backward" and problem.operator in NORMS):
        raise Declined(f"has no {problem.direction} of {problem.operator}")
    forward = problem.direction.startswith("forward")
    size = problem.out_size if forward else problem.in_size
    wide = WIDE if problem.channels % WIDE == 0 else 1
    blocks = problem.channels // wide
    count = problem.batch * prod(size) * blocks
    if count + GROUP > LARGEST or prod(problem.in_size) + prod(problem.kernel) > LARGEST:
        raise Declined("counts in 32 bits")
    (_, rows, columns), (_, kh, kw), (_, sh, sw) = in_3d(size, 1), in_3d(problem.kernel, 1), in_3d(problem.stride, 1)
    macros: dict[str, Any] = {**operator_macros(problem), **WINDOWS.defines(), "GROUP": GROUP, "WIDE": wide}
    macros |= {"KH": kh, "KW": kw, "SH": sh, "SW": sw, "MAKES": 1 if forward else 2}
    if problem.direction.endswith("_argmax"):
        macros["ARGMAX"] = 1
    name = "pool_pixels_forward" if forward else "pool_pixels_backward"
    arguments = (
        *(*bind(problem), windows_argument(problem), Constant(np.uint32(count)), *ints(blocks)),
        *(divisor_argument(number) for number in (blocks, columns, rows)),
    )
    kernel = planner.kernel(FILE, name, macros, problem.dtype)
    return Launches((Launch(kernel, (ceil_div(count, GROUP) * GROUP,), (GROUP,), arguments, outputs(problem)),))
