"""The implementation of every problem that only moves elements: its boxes, one launch each."""

from __future__ import annotations

from typing import Any

from clgraft.core.operators.copying.boxes import launches
from clgraft.core.operators.copying.whole_gpu import whole_launches
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.launches import Launches

NAME = "boxes"


def plan(problem: Any, planner: Planner) -> Launches:
    """Plan the problem's boxes, or what copies all of them at once on a GPU."""
    together = None if planner.device.is_cpu else whole_launches(problem, planner)
    if together is not None:
        return Launches(together)
    return Launches(tuple(launch for box in problem.boxes() for launch in launches(planner, box, problem.dtype)))
