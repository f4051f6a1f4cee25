"""A layer, and what follows it as a launch of its own: for implementations without epilogues."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from clgraft.core.operators.fused.problem import FusedProblem
from clgraft.core.operators.pointwise.generate import generate
from clgraft.core.operators.pointwise.loop import Loop, Operand, Result, broadcast_strides
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.launches import Accumulate, Buffer, Constant, Launches, Workspace
from clgraft.core.planning.workspace import WorkspaceLayout

NAME = "in_turn"


def plan(problem: FusedProblem, planner: Planner) -> Launches:
    """Plan the layer into the workspace, and the program from there into the result."""
    base = planner.launches(problem.base)
    layout = WorkspaceLayout(base.workspace_bytes)
    size = np.dtype(problem.dtype).itemsize
    middle = layout.take(math.prod(problem.shape) * size, size)

    def bind(item: Any) -> Any:
        if isinstance(item, Buffer) and item.name == problem.result:
            return middle
        return Constant(np.int32(0)) if isinstance(item, Accumulate) else item

    launches = [replace(launch, arguments=tuple(map(bind, launch.arguments))) for launch in base.launches]
    pointwise = problem.pointwise
    common = pointwise.common_shape
    bindings: list[Buffer | Workspace] = [middle, *(Buffer(f"x{i + 1}") for i in range(len(problem.extras)))]
    loop = Loop(
        shape=common,
        assignments=pointwise.assignments,
        inputs={
            i: Operand(binding, broadcast_strides(shape, common))
            for i, (binding, shape) in enumerate(zip(bindings, pointwise.inputs))
        },
        outputs={0: Result(Buffer(problem.result), problem.result)},
        scalars=problem.scalars(),
        dtype=problem.dtype,
    )
    launches += generate(planner, loop).items
    return Launches(tuple(launches), layout.nbytes)
