"""Resampling of an axis by given weights: the problem, the weights of usual filters, and the implementation."""

from clgraft.core.operators.resampling import elements
from clgraft.core.operators.resampling.filters import Resampling
from clgraft.core.operators.resampling.problem import ResampleProblem
from clgraft.core.planning.implementation import register

register(ResampleProblem, (elements,))

__all__ = ["ResampleProblem", "Resampling"]
