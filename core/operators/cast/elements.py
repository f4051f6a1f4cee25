"""Conversion with a work-item per element, for all devices."""

from __future__ import annotations

import numpy as np

from clgraft.core.operators.cast.problem import CastProblem
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.launches import Accumulate, Buffer, Constant, Launch, Launches
from clgraft.core.problem import round_up

NAME = "elements"
GROUP = 64
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
    kernel = planner.kernel("cast/cast.cl", "cast_elements", macros, problem.dtype)
    arguments = (Buffer("x"), Buffer("y"), Accumulate("y"), Constant(np.uint64(problem.count)))
    return Launches((Launch(kernel, (round_up(problem.count, GROUP),), (GROUP,), arguments, ("y",)),))
