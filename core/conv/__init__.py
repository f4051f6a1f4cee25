"""Convolution: the problem and its implementations in order of preference."""

from clgraft.core.conv import (
    bias,
    cpu_gemm,
    depthwise,
    depthwise_flat,
    depthwise_gpu,
    depthwise_rows,
    depthwise_strided,
    direct,
    gpu_gemm,
    grouped_planes,
    winograd,
)
from clgraft.core.conv.problem import ConvProblem

IMPLEMENTATIONS = (
    bias,
    grouped_planes,
    depthwise_flat,
    depthwise_rows,
    depthwise_strided,
    depthwise,
    depthwise_gpu,
    winograd,
    cpu_gemm,
    gpu_gemm,
    direct,
)

__all__ = ["IMPLEMENTATIONS", "ConvProblem"]
