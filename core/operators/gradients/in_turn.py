"""The two gradients one after the other, for devices and sizes that no kernel serves together."""

from __future__ import annotations

from clgraft.core.operators.gradients.problem import GradientsProblem
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.launches import Launches

NAME = "in_turn"


def plan(problem: GradientsProblem, planner: Planner) -> Launches:
    """Plan the launches of both; the second begins when the first has finished, so they share the workspace."""
    planned = [planner.launches(part) for part in problem.parts]
    return Launches(
        tuple(launch for part in planned for launch in part.launches), max(part.workspace_bytes for part in planned)
    )
