"""Softmax: the problem and its implementations in order of preference."""

from clgraft.core.operators.softmax import elements, vectors
from clgraft.core.operators.softmax.problem import SoftmaxProblem
from clgraft.core.planning.implementation import register

register(SoftmaxProblem, (vectors, elements))

__all__ = ["SoftmaxProblem"]
