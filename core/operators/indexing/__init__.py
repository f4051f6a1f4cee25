"""Elements by their index: gather and scatter, and their implementations."""

from clgraft.core.operators.indexing import elements, lines
from clgraft.core.operators.indexing.problem import GatherProblem, ScatterProblem
from clgraft.core.planning.implementation import register

register(GatherProblem, (elements,))
register(ScatterProblem, (lines,))

__all__ = ["GatherProblem", "ScatterProblem"]
