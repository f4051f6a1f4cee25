"""A problem in one layout by implementations of the other one: tensors and weights are transposed in the workspace.

Channels last by any implementation of channels first serves every problem on every device, and wherever the product
costs far more than two passes over memory it is also fast: the implementation between the transpositions is the best
that the device has. `through` is also the way to implementations that have channels last alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from clgraft.core.operators.copying import TransposeProblem
from clgraft.core.planning.epilogue import WHOLE, Epilogue
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.launches import Accumulate, Buffer, Constant, Launch, Launches, Workspace
from clgraft.core.planning.workspace import WorkspaceLayout
from clgraft.core.problem import Argument
from clgraft.core.problem.layout import FIRST, LAST

NAME = "transposes"
SLACK = 256  # bytes after each part, for kernels that read whole vectors


def fuses(problem: Any, epilogue: Epilogue) -> bool:
    """Return whether an epilogue is served: forward; `plan` declines where the implementation in between has none."""
    return problem.direction == "forward"


def plan(problem: Any, planner: Planner, epilogue: Epilogue | None = None) -> Launches:
    """Plan the transpositions of the inputs, the problem with channels first, and the transposition of the result."""
    first = replace(problem, layout=FIRST)
    return through(
        problem, planner, planner.launches(first) if epilogue is None else planner.fused(first, epilogue), epilogue
    )


def through(problem: Any, planner: Planner, inner: Launches, epilogue: Epilogue | None = None) -> Launches:
    """Return the launches of a problem whose inner ones are those of the other layout.

    Parameters
    ----------
    problem : Problem
        With a layout.
    planner : Planner
    inner : Launches
        Of the same problem in the other layout, with the same epilogue.
    epilogue : Epilogue, optional
    """
    to_first = problem.layout == LAST  # the inputs
    *inputs, output = replace(problem, layout=LAST).arguments()
    if epilogue is not None:
        kinds = enumerate(epilogue.extras, 1)
        inputs += (replace(output, name=f"x{i}", role="in") for i, kind in kinds if kind == WHOLE)
    layout = WorkspaceLayout(inner.workspace_bytes)
    parts: dict[str, Workspace] = {}
    before: list[Launch] = []
    for argument in (*inputs, output):
        if not _moves(argument):
            continue
        itemsize = np.dtype(argument.dtype).itemsize
        part = parts[argument.name] = layout.take(argument.nbytes + SLACK, itemsize)
        if argument.role == "in":
            weights = argument.name == "w"
            before += _transposed(planner, argument, to_first, Buffer(argument.name), part, output.name, weights)
    launches = [*before, *(with_parts(launch, parts) for launch in inner.launches)]
    if output.name in parts:
        launches += _transposed(planner, output, not to_first, parts[output.name], Buffer(output.name), output.name)
    return Launches(tuple(launches), layout.nbytes)


def _moves(argument: Argument) -> bool:
    """Return whether an argument's memory differs between the layouts."""
    return len(argument.shape) > 2 and argument.shape[-1] > 1 and math.prod(argument.shape[1:-1]) > 1


def _transposed(
    planner: Planner,
    argument: Argument,
    to_first: bool,
    source: Buffer | Workspace,
    target: Buffer | Workspace,
    result: str,
    weights: bool = False,
) -> list[Launch]:
    """Return the launches that move the channels of an argument's memory, to channels first or to channels last.

    The argument's shape is that of channels last.

    They help to compute `result`. What `weights` are turned into is made once where they never change.
    """
    outer, *spatial, channels = argument.shape
    pixels = math.prod(spatial)
    shape = (outer, pixels, channels) if to_first else (outer, channels, pixels)
    if not math.prod(shape):
        return []
    moved = planner.launches(TransposeProblem(shape, (0, 2, 1), argument.dtype))
    overwrites = isinstance(target, Workspace)

    def bind(item: Any) -> Any:
        if isinstance(item, Buffer):
            return source if item.name == "x" else target
        if isinstance(item, Accumulate):
            return Constant(np.int32(0)) if overwrites else Accumulate(result)
        return item

    prepares = (argument.nbytes,) if weights and len(moved.launches) == 1 else ()
    return [
        replace(launch, arguments=tuple(map(bind, launch.arguments)), writes=(result,), prepares=prepares)
        for launch in moved.launches
    ]


def with_parts(launch: Launch, parts: Mapping[str, Workspace]) -> Launch:
    """Return a launch that has parts of the workspace in place of buffers, and always overwrites them."""
    bound = tuple(_elsewhere(item, parts) for item in launch.arguments)
    moved = any(isinstance(item, Buffer) and item.name in parts for item in launch.arguments)
    # what it prepares from a buffer that is now in the workspace is made anew in each run
    return replace(launch, arguments=bound, prepares=() if moved else launch.prepares)


def _elsewhere(item: Any, parts: Mapping[str, Workspace]) -> Any:
    if isinstance(item, Buffer):
        return parts.get(item.name, item)
    return Constant(np.int32(0)) if isinstance(item, Accumulate) and item.name in parts else item
