"""Batch norm: the problem and its implementation."""

from clgraft.core.operators.batchnorm import generated
from clgraft.core.operators.batchnorm.problem import BatchNormProblem
from clgraft.core.planning.implementation import register

register(BatchNormProblem, (generated,))

__all__ = ["BatchNormProblem"]
