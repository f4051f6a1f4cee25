"""A layer whose kernel computes what follows it, before it stores its result."""

from __future__ import annotations

from collections.abc import Mapping

from clgraft.core.errors import Declined
from clgraft.core.operators.fused.problem import FusedProblem
from clgraft.core.planning.choice import Value
from clgraft.core.planning.epilogue import Epilogue
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.launches import Launches, Sums, WantedSums

NAME = "in_kernel"


def plan(problem: FusedProblem, planner: Planner) -> Launches:
    """Return the layer's launches; decline where the implementation that serves the layer best has no epilogues."""
    return planner.fused(problem.base, problem.epilogue)


def plan_sums(
    problem: FusedProblem,
    planner: Planner,
    wanted: WantedSums,
    settings: Mapping[str, Value] | None = None,
    epilogue: Epilogue | None = None,
) -> Sums:
    """Return the layer's launches, one of which leaves the sums that are wanted; it has no settings of its own."""
    if settings or epilogue:
        raise Declined("has an epilogue, and the layer's settings")
    return planner.fused_sums(problem.base, problem.epilogue, wanted)
