"""Gradients of data and weights together: the problem; `implementations` lists what computes it."""

from clgraft.core.operators.gradients.problem import GradientsProblem

__all__ = ["GradientsProblem"]
