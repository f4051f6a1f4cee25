"""Softmax: the problem; `implementations` lists what computes it."""

from clgraft.core.operators.softmax.problem import SoftmaxProblem

__all__ = ["SoftmaxProblem"]
