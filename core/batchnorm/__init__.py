"""Batch norm: the problem and its implementation."""

from clgraft.core.batchnorm import generated
from clgraft.core.batchnorm.problem import BatchNormProblem

IMPLEMENTATIONS = (generated,)

__all__ = ["IMPLEMENTATIONS", "BatchNormProblem"]
