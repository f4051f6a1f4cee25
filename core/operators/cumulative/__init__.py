"""Cumulative sums and products: the problem and its implementation."""

from clgraft.core.operators.cumulative import lines
from clgraft.core.operators.cumulative.problem import CumulativeProblem
from clgraft.core.planning.implementation import register

register(CumulativeProblem, (lines,))

__all__ = ["CumulativeProblem"]
