"""Registers the implementations, in order of preference."""

from clgraft.core.operators.deconvolution import cpu_columns, through_convolution
from clgraft.core.operators.deconvolution.problem import DeconvProblem
from clgraft.core.planning.implementation import register, register_channels_last

register(DeconvProblem, (cpu_columns, through_convolution))
register_channels_last(DeconvProblem, (through_convolution,))
