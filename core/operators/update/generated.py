"""The implementation of every update: the kernel of the pointwise problem, whose outputs take the states' place."""

from __future__ import annotations

from clgraft.core.operators.update.problem import UpdateProblem
from clgraft.core.planning.delegation import delegate
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.launches import Launches

NAME = "generated"


def plan(problem: UpdateProblem, planner: Planner) -> Launches:
    """Plan the pointwise problem on the states' own memory."""
    return delegate(planner, problem.step, {f"y{i}": name for i, name in enumerate(problem.states)})
