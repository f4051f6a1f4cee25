"""Resampling of an axis by given weights: the problem, and the weights of usual filters."""

from clgraft.core.operators.resampling.filters import Resampling
from clgraft.core.operators.resampling.problem import ResampleProblem

__all__ = ["ResampleProblem", "Resampling"]
