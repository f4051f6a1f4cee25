"""Deconvolution (transposed convolution): the problem and its implementations in order of preference."""

from clgraft.core.deconvolution import cpu_columns, through_convolution
from clgraft.core.deconvolution.problem import DeconvProblem

IMPLEMENTATIONS = (cpu_columns, through_convolution)

__all__ = ["IMPLEMENTATIONS", "DeconvProblem"]
