"""Convolution: the problem and its implementations in order of preference."""

from clgraft.core.conv import bias, cpu_gemm, direct, gpu_gemm
from clgraft.core.conv.problem import ConvProblem

IMPLEMENTATIONS = (bias, cpu_gemm, gpu_gemm, direct)

__all__ = ["IMPLEMENTATIONS", "ConvProblem"]
