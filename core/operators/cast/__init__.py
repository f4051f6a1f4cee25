"""Conversion of numbers to another type: the problem and its implementation."""

from clgraft.core.operators.cast import elements
from clgraft.core.operators.cast.problem import CastProblem
from clgraft.core.planning.implementation import register

register(CastProblem, (elements,))

__all__ = ["CastProblem"]
