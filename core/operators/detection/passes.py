"""The choice among sorted boxes with a work-group per image, which passes over the later boxes for each that stays."""

from __future__ import annotations

from clgraft.core.operators.detection.ordered import OrderedSuppressionProblem
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.launches import Accumulate, Buffer, Launch, Launches, Scalar, ints
from clgraft.core.planning.workspace import WorkspaceLayout

NAME = "passes"
GROUP = 64


def plan(problem: OrderedSuppressionProblem, planner: Planner) -> Launches:
    """Plan one launch."""
    layout = WorkspaceLayout()
    left = layout.take(problem.images * problem.boxes, 1)
    macros = {"CENTER": int(problem.center), "LABELS": int(problem.labels), "GROUP": GROUP}
    kernel = planner.kernel("detection/ordered.cl", "suppress_ordered", macros, problem.dtype)
    labels = (Buffer("labels"),) if problem.labels else ()
    real = "float64" if problem.dtype == "float64" else "float32"
    arguments = (
        *(Buffer("boxes"), Buffer("valid"), *labels, Buffer("y"), Accumulate("y"), left),
        *(Scalar("overlap", real), *ints(problem.boxes)),
    )
    items = problem.images * GROUP
    return Launches((Launch(kernel, (items,), (GROUP,), arguments, ("y",)),), layout.nbytes)
