"""Convolution: the problem and its implementations in order of preference."""

from clgraft.core.conv import direct
from clgraft.core.conv.problem import ConvProblem

IMPLEMENTATIONS = (direct,)

__all__ = ["IMPLEMENTATIONS", "ConvProblem"]
