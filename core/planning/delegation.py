"""Plans a problem through another one: the other problem's launches, with its arguments renamed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from clgraft.core.planning.epilogue import Epilogue
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.launches import Accumulate, Buffer, Launches
from clgraft.core.problem import Problem


def delegate(
    planner: Planner, problem: Problem, names: Mapping[str, str], epilogue: Epilogue | None = None
) -> Launches:
    """Return the launches for another problem, as a part of the one that is planned.

    Parameters
    ----------
    planner : Planner
    problem : Problem
        Its arguments have as many elements as those that they are renamed to.
    names : mapping
        The other problem's arguments to those of the planned one; the others keep their names.
    epilogue : Epilogue, optional
        What follows the other problem's result.
    """

    def renamed(item: Any) -> Any:
        return type(item)(names.get(item.name, item.name)) if isinstance(item, (Buffer, Accumulate)) else item

    def all_renamed(delegated: Launches) -> Launches:
        launches = tuple(
            replace(
                launch,
                arguments=tuple(map(renamed, launch.arguments)),
                writes=tuple(names.get(name, name) for name in launch.writes),
            )
            for launch in delegated.launches
        )
        prepared = delegated.prepared and all_renamed(delegated.prepared)
        return Launches(launches, delegated.workspace_bytes, prepared)

    return all_renamed(planner.launches(problem) if epilogue is None else planner.fused(problem, epilogue))
