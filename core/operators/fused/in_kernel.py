"""A layer whose kernel computes what follows it, before it stores its result."""

from __future__ import annotations

from clgraft.core.operators.fused.problem import FusedProblem
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.launches import Launches

NAME = "in_kernel"


def plan(problem: FusedProblem, planner: Planner) -> Launches:
    """Return the layer's launches; decline where the implementation that serves the layer best has no epilogues."""
    return planner.fused(problem.base, problem.epilogue)
