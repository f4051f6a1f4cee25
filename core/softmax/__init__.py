"""Softmax: the problem and its implementations in order of preference."""

from clgraft.core.softmax import elements, vectors
from clgraft.core.softmax.problem import SoftmaxProblem

IMPLEMENTATIONS = (vectors, elements)

__all__ = ["IMPLEMENTATIONS", "SoftmaxProblem"]
