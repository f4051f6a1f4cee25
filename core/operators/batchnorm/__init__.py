"""Batch norm: the problem; `implementations` lists what computes it."""

from clgraft.core.operators.batchnorm.problem import FOLLOWING, BatchNormProblem

__all__ = ["FOLLOWING", "BatchNormProblem"]
