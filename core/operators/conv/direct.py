"""The last resort: convolution straight from its definition, for every problem on every device."""

from __future__ import annotations

from typing import Any

import numpy as np

from clgraft.core.operators.conv.problem import ConvProblem
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.launches import Accumulate, Buffer, Constant, Launch, Launches
from clgraft.core.problem import in_3d

NAME = "direct"


def shape_constants(problem: ConvProblem) -> tuple[Constant, ...]:
    """Return the kernel's SHAPE parameters."""
    counts = (problem.batch, problem.in_channels, problem.out_channels, problem.groups)
    sizes: tuple[Any, ...] = (
        *in_3d(problem.in_size, 1),
        *in_3d(problem.out_size, 1),
        *in_3d(problem.kernel, 1),
        *in_3d(problem.stride, 1),
        *in_3d(problem.pad_begin, 0),
        *in_3d(problem.dilate, 1),
    )
    return tuple(Constant(np.int64(v)) for v in counts) + tuple(Constant(np.int32(v)) for v in sizes)


def plan(problem: ConvProblem, planner: Planner) -> Launches:
    """Plan one launch with a work-item per element of the result."""
    kernel = planner.kernel("conv/direct.cl", f"conv_{problem.direction}", dtype=problem.dtype)
    *inputs, output = problem.arguments()
    bound: list[Any] = [Buffer(argument.name) for argument in inputs]
    if problem.direction == "forward" and not problem.bias:
        bound.append(Buffer("w"))  # stands in for b, which the kernel then never reads
    bound.append(Buffer(output.name))
    if problem.direction == "forward":
        bound.append(Constant(np.int32(problem.bias)))
    bound.append(Accumulate(output.name))
    bound += shape_constants(problem)
    return Launches((Launch(kernel, (output.size,), None, tuple(bound), (output.name,)),))
