"""Programs per element: broadcast, compute, fold. The problem; `implementations` lists what computes it."""

from clgraft.core.operators.pointwise.expression import (
    ALIASES,
    CONSTANTS,
    Statement,
    Term,
    read_assignments,
    read_value,
)
from clgraft.core.operators.pointwise.problem import PointwiseProblem, Reduction, broadcast_shape

__all__ = [
    "ALIASES",
    "CONSTANTS",
    "PointwiseProblem",
    "Reduction",
    "Statement",
    "Term",
    "broadcast_shape",
    "read_assignments",
    "read_value",
]
