"""Pooling: the problem and its implementations in order of preference."""

from clgraft.core.operators.pooling import elements, mask, planes, whole, windows_gpu
from clgraft.core.operators.pooling.problem import PoolProblem
from clgraft.core.planning.implementation import register

register(PoolProblem, (whole, planes, windows_gpu, elements))
register(PoolProblem, (mask,), direction="mask")

__all__ = ["PoolProblem"]
