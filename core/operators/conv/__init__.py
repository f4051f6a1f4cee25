"""Convolution: the problem; `implementations` lists what computes it."""

from clgraft.core.operators.conv.problem import ConvProblem

__all__ = ["ConvProblem"]
