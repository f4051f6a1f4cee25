"""Deconvolution (transposed convolution): the problem; `implementations` lists what computes it."""

from clgraft.core.operators.deconvolution.problem import DeconvProblem

__all__ = ["DeconvProblem"]
