"""The last resort: convolution straight from its definition, for every problem on every device."""

from __future__ import annotations

from typing import Any

from clgraft.core.operators.conv.arguments import GRID
from clgraft.core.operators.conv.grid import spatial_grid
from clgraft.core.operators.conv.problem import ConvProblem
from clgraft.core.planning.epilogue import Epilogue, epilogue_arguments, epilogue_defines
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.launches import Accumulate, Buffer, Launch, Launches, ints

NAME = "direct"


def fuses(problem: ConvProblem, epilogue: Epilogue) -> bool:
    """Return whether an epilogue is served: all of them, forward."""
    return problem.direction == "forward"


def plan(problem: ConvProblem, planner: Planner, epilogue: Epilogue | None = None) -> Launches:
    """Plan one launch with a work-item per element of the result."""
    defines = {**GRID.defines(), **epilogue_defines(epilogue)}
    kernel = planner.kernel("conv/direct.cl", f"conv_{problem.direction}", defines, dtype=problem.dtype)
    *inputs, output = problem.arguments()
    bound: list[Any] = [Buffer(argument.name) for argument in inputs]
    if problem.direction == "forward" and not problem.bias:
        bound.append(Buffer("w"))  # stands in for b, which the kernel then never reads
    bound.append(Buffer(output.name))
    if problem.direction == "forward":
        bound += ints(problem.bias)
    bound.append(Accumulate(output.name))
    bound += ints(problem.in_channels, problem.out_channels, problem.groups)
    bound.append(spatial_grid(problem).argument())
    bound += epilogue_arguments(epilogue, problem.dtype)
    return Launches((Launch(kernel, (output.size,), None, tuple(bound), (output.name,)),))
