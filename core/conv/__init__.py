"""Convolution: the problem and its implementations in order of preference."""

from clgraft.core.conv import (
    bias,
    cpu_gemm,
    depthwise,
    depthwise_flat,
    depthwise_gpu,
    depthwise_rows,
    direct,
    gpu_gemm,
    winograd,
)
from clgraft.core.conv.problem import ConvProblem

IMPLEMENTATIONS = (
    bias,
    depthwise_flat,
    depthwise_rows,
    depthwise,
    depthwise_gpu,
    winograd,
    cpu_gemm,
    gpu_gemm,
    direct,
)

__all__ = ["IMPLEMENTATIONS", "ConvProblem"]
