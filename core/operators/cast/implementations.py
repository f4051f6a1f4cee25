"""Registers the implementations, in order of preference."""

from clgraft.core.operators.cast import elements, matrices
from clgraft.core.operators.cast.problem import CastProblem
from clgraft.core.operators.cast.together import CastsProblem
from clgraft.core.planning.implementation import register

register(CastProblem, (elements,))
register(CastsProblem, (matrices,))
