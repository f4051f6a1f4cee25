"""The two layers one after the other, for devices and sizes that no kernel serves together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from clgraft.core.operators.separable.problem import PREFIX, SeparableProblem
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.launches import Accumulate, Buffer, Launches, Scalar, Workspace, ints
from clgraft.core.planning.workspace import WorkspaceLayout

NAME = "in_turn"


def plan(problem: SeparableProblem, planner: Planner) -> Launches:
    """Plan the first layer into the workspace, and the second from there."""
    layout = WorkspaceLayout()
    middle = layout.take(problem.middle.nbytes, problem.middle.nbytes // max(problem.middle.size, 1) or 4)
    first = _moved(planner.launches(problem.depthwise), {"y": middle}, PREFIX, layout)
    second = _moved(planner.launches(problem.product), {"x": middle}, "", layout)
    return Launches((*first, *second), layout.nbytes)


def _moved(planned: Launches, parts: dict[str, Workspace], prefix: str, layout: WorkspaceLayout) -> list[Any]:
    """Return a layer's launches with parts of the workspace in place of buffers, and a workspace of its own."""
    begin = layout.take(planned.workspace_bytes).offset_bytes

    def bind(item: Any) -> Any:
        if isinstance(item, Workspace):
            return replace(item, offset_bytes=begin + item.offset_bytes)
        if isinstance(item, Buffer) and item.name in parts:
            return replace(parts[item.name], offset_bytes=parts[item.name].offset_bytes + item.offset_bytes)
        if isinstance(item, Accumulate) and item.name in parts:
            return ints(0)[0]
        if isinstance(item, (Buffer, Scalar)) and item.name != "x":
            return replace(item, name=prefix + item.name)
        return item

    return [replace(launch, arguments=tuple(map(bind, launch.arguments))) for launch in planned.launches]
