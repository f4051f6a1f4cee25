"""Programs per element: broadcast, compute, fold. The problem and its implementation."""

from clgraft.core.operators.pointwise import generated
from clgraft.core.operators.pointwise.expression import (
    ALIASES,
    CONSTANTS,
    Statement,
    Term,
    read_assignments,
    read_value,
)
from clgraft.core.operators.pointwise.problem import PointwiseProblem, Reduction, broadcast_shape
from clgraft.core.planning.implementation import register

register(PointwiseProblem, (generated,))

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
