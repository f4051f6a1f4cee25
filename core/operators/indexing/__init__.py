"""Elements by their index: gather and scatter."""

from clgraft.core.operators.indexing.problem import GatherProblem, ScatterProblem

__all__ = ["GatherProblem", "ScatterProblem"]
