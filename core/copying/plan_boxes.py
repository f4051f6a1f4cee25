"""The implementation of every problem that only moves elements: its boxes, one launch each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clgraft.core.copying.boxes import launches
from clgraft.core.plan import Steps

if TYPE_CHECKING:
    from clgraft.core.context import Context

NAME = "boxes"


def plan(problem: Any, context: Context) -> Steps:
    """Plan the problem's boxes."""
    return Steps(tuple(launch for box in problem.boxes() for launch in launches(context, box, problem.dtype)))
