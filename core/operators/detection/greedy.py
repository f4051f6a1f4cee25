"""The choice of boxes with a work-item per image and class, which takes the best one that is left again and again."""

from __future__ import annotations

import numpy as np

from clgraft.core.operators.detection.suppression import NonMaxSuppressionProblem
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.launches import Accumulate, Buffer, Constant, Launch, Launches, Scalar, Workspace
from clgraft.core.planning.workspace import WorkspaceLayout

NAME = "greedy"
FILE = "detection/suppression.cl"


def plan(problem: NonMaxSuppressionProblem, planner: Planner) -> Launches:
    """Plan the choice of each class, and the launch that joins the classes."""
    layout = WorkspaceLayout()
    lines = problem.images * problem.classes
    most = min(problem.most, problem.boxes)
    left: Workspace = layout.take(lines * problem.boxes, 1)
    chosen: Workspace = layout.take(lines * most * 4, 4)
    counts: Workspace = layout.take(lines * 4, 4)
    real = "float64" if problem.dtype == "float64" else "float32"
    sizes = tuple(Constant(np.int32(size)) for size in (problem.classes, problem.boxes, most))
    choice = Launch(
        planner.kernel(FILE, "choose_boxes", {"CENTER": int(problem.center)}, problem.dtype),
        (lines,),
        (1,),
        (
            *(Buffer("boxes"), Buffer("scores"), left, chosen, counts),
            *(Scalar("overlap", real), Scalar("score", real), *sizes),
        ),
        ("index", "count"),
    )
    join = Launch(
        planner.kernel(FILE, "join_boxes", {"CENTER": int(problem.center)}, problem.dtype),
        (1,),
        (1,),
        (
            *(chosen, counts, Buffer("index"), Buffer("count"), Accumulate("index"), Accumulate("count")),
            *(Constant(np.int32(lines)), Constant(np.int32(problem.classes)), Constant(np.int32(most))),
        ),
        ("index", "count"),
    )
    return Launches((choice, join), layout.nbytes)
