"""Images sampled at given places: the problem and its implementation."""

from clgraft.core.operators.sampling import elements
from clgraft.core.operators.sampling.problem import GridSampleProblem
from clgraft.core.planning.implementation import register

register(GridSampleProblem, (elements,))

__all__ = ["GridSampleProblem"]
