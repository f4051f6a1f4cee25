"""The implementation of every problem that only moves elements: its boxes, one launch each."""

from __future__ import annotations

from typing import Any

from clgraft.core.operators.copying.boxes import launches
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.launches import Launches

NAME = "boxes"


def plan(problem: Any, planner: Planner) -> Launches:
    """Plan the problem's boxes."""
    return Launches(tuple(launch for box in problem.boxes() for launch in launches(planner, box, problem.dtype)))
