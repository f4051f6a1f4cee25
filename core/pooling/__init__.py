"""Pooling: the problem and its implementations in order of preference."""

from clgraft.core.pooling import elements, planes, whole
from clgraft.core.pooling.problem import PoolProblem

IMPLEMENTATIONS = (whole, planes, elements)

__all__ = ["IMPLEMENTATIONS", "PoolProblem"]
