"""Pooling: the problem; `implementations` lists what computes it."""

from clgraft.core.operators.pooling.problem import PoolProblem

__all__ = ["PoolProblem"]
