"""Interpolation (resize): the problem; `implementations` lists what computes it."""

from clgraft.core.operators.interpolation.problem import InterpolationProblem

__all__ = ["InterpolationProblem"]
