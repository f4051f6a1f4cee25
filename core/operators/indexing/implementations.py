"""Registers the implementations, in order of preference."""

from clgraft.core.operators.indexing import elements, lines
from clgraft.core.operators.indexing.problem import GatherProblem, ScatterProblem
from clgraft.core.planning.implementation import register

register(GatherProblem, (elements,))
register(ScatterProblem, (lines,))
