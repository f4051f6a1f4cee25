"""Registers the implementations, in order of preference."""

from clgraft.core.operators.channels_last import transposes
from clgraft.core.operators.conv import bias, direct, few_channels_cpu, few_channels_gpu, few_planes_cpu
from clgraft.core.operators.conv.channels_last import bias_gpu, dense, filters, pixels
from clgraft.core.operators.conv.channels_last import depthwise as channels
from clgraft.core.operators.conv.channels_last import depthwise_gpu as channels_gpu
from clgraft.core.operators.conv.depthwise import cpu as depthwise
from clgraft.core.operators.conv.depthwise import cpu_fixed as depthwise_fixed
from clgraft.core.operators.conv.depthwise import cpu_flat as depthwise_flat
from clgraft.core.operators.conv.depthwise import cpu_gradients as depthwise_gradients
from clgraft.core.operators.conv.depthwise import cpu_rows as depthwise_rows
from clgraft.core.operators.conv.depthwise import cpu_strided as depthwise_strided
from clgraft.core.operators.conv.depthwise import gpu as depthwise_gpu
from clgraft.core.operators.conv.depthwise import grouped_planes
from clgraft.core.operators.conv.fft import gpu as gpu_fft
from clgraft.core.operators.conv.gemm_cpu import amx as cpu_amx
from clgraft.core.operators.conv.gemm_cpu import gemm as cpu_gemm
from clgraft.core.operators.conv.gemm_cpu import pairs as cpu_pairs
from clgraft.core.operators.conv.gemm_gpu import gemm as gpu_gemm
from clgraft.core.operators.conv.gemm_gpu import halves as gpu_halves
from clgraft.core.operators.conv.problem import ConvProblem
from clgraft.core.operators.conv.winograd import winograd
from clgraft.core.operators.conv.winograd_gpu import winograd as gpu_winograd
from clgraft.core.planning.implementation import register, register_channels_last

register(
    ConvProblem,
    (
        bias,
        depthwise_fixed,
        depthwise_gradients,
        grouped_planes,
        depthwise_flat,
        depthwise_rows,
        depthwise_strided,
        depthwise,
        depthwise_gpu,
        few_planes_cpu,
        cpu_amx,
        cpu_pairs,
        winograd,
        few_channels_cpu,
        cpu_gemm,
        *gpu_halves.IMPLEMENTATIONS,
        few_channels_gpu,
        gpu_fft,
        gpu_winograd,
        *gpu_gemm.IMPLEMENTATIONS,
        direct,
    ),
)
register_channels_last(
    ConvProblem,
    (bias_gpu, bias, *gpu_halves.IMPLEMENTATIONS, channels, channels_gpu, pixels, filters, dense, transposes),
)
