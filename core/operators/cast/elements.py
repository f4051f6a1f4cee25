"""Conversion with a work-item per element, for all devices; on GPUs one for four neighbours."""

from __future__ import annotations

import numpy as np

from clgraft.core.operators.cast.problem import CastProblem
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.launches import Accumulate, Buffer, Constant, Launch, Launches
from clgraft.core.problem import ceil_div, round_up

NAME = "elements"
GROUP = 64
QUAD, QUADS_GROUP = 4, 128  # elements of a GPU's work-item, and its work-groups
NUMBERS = {
    "float32": 0,
    "float16": 1,
    "float64": 2,
    "int32": 3,
    "uint8": 4,
    "bfloat16": 5,
}  # as the kernel counts types


def plan(problem: CastProblem, planner: Planner) -> Launches:
    """Plan one launch."""
    macros = {"SOURCE": NUMBERS[problem.source], "TARGET": NUMBERS[problem.target]}
    name, items, group = "cast_elements", problem.count, GROUP
    if not planner.device.is_cpu:
        name, items, group = "cast_quads", ceil_div(problem.count, QUAD), QUADS_GROUP
        macros["GROUP"] = group
    kernel = planner.kernel("cast/cast.cl", name, macros, problem.dtype)
    arguments = (Buffer("x"), Buffer("y"), Accumulate("y"), Constant(np.uint64(problem.count)))
    return Launches((Launch(kernel, (round_up(items, group),), (group,), arguments, ("y",)),))
