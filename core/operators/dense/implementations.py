"""Registers the implementations, in order of preference."""

from clgraft.core.operators.dense import channels_last_gpu, cpu, cpu_pairs, cpu_panel, outer_gpu, through_convolution
from clgraft.core.operators.dense.problem import DenseProblem
from clgraft.core.planning.implementation import register

register(DenseProblem, (cpu_pairs, cpu_panel, cpu, channels_last_gpu, outer_gpu, through_convolution))
