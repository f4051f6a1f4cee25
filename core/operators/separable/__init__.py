"""Depthwise separable convolutions: the problem; `implementations` lists what computes it."""

from clgraft.core.operators.separable.problem import SeparableProblem

__all__ = ["SeparableProblem"]
