"""Registers the implementations, in order of preference."""

from clgraft.core.operators.batchnorm import channels, channels_cpu, generated, rows_cpu, rows_gpu
from clgraft.core.operators.batchnorm.problem import BatchNormProblem
from clgraft.core.planning.implementation import register

register(BatchNormProblem, (channels_cpu, rows_cpu, rows_gpu, channels, generated))
