"""Conversion of numbers to another type: the problems, of one array and of several."""

from clgraft.core.operators.cast.problem import CastProblem
from clgraft.core.operators.cast.together import CastsProblem

__all__ = ["CastProblem", "CastsProblem"]
