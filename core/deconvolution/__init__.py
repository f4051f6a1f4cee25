"""Deconvolution (transposed convolution): the problem and its implementation."""

from clgraft.core.deconvolution import through_convolution
from clgraft.core.deconvolution.problem import DeconvProblem

IMPLEMENTATIONS = (through_convolution,)

__all__ = ["IMPLEMENTATIONS", "DeconvProblem"]
