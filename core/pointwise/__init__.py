"""Programs per element: broadcast, compute, fold. The problem and its implementation."""

from clgraft.core.pointwise import generated
from clgraft.core.pointwise.problem import PointwiseProblem, Reduction

IMPLEMENTATIONS = (generated,)

__all__ = ["IMPLEMENTATIONS", "PointwiseProblem", "Reduction"]
