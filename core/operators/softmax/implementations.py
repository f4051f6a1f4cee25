"""Registers the implementations, in order of preference."""

from clgraft.core.operators.softmax import columns_gpu, elements, rows_gpu, vectors
from clgraft.core.operators.softmax.problem import SoftmaxProblem
from clgraft.core.planning.implementation import register

register(SoftmaxProblem, (vectors, rows_gpu, columns_gpu, elements))
