"""The first few elements with a work-item per line, which passes over the line once for each of them."""

from __future__ import annotations

from clgraft.core.errors import Declined
from clgraft.core.operators.ordering.problem import TopKProblem
from clgraft.core.operators.ordering.ranks import bind
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.launches import Launches

NAME = "scans"
MOST = 8  # passes; from there on ranks of all elements are less work, or work for more work-items


def plan(problem: TopKProblem, planner: Planner) -> Launches:
    """Plan one launch."""
    if problem.k > MOST:
        raise Declined(f"is for at most {MOST} elements")
    return bind(problem, planner, "topk_scans", problem.outer * problem.inner)
