"""Registers the implementations, in order of preference."""

from clgraft.core.operators.sampling import elements
from clgraft.core.operators.sampling.problem import GridSampleProblem
from clgraft.core.planning.implementation import register

register(GridSampleProblem, (elements,))
