"""Dense (fully connected) layers: the problem and its implementations in order of preference."""

from clgraft.core.operators.dense import cpu, cpu_panel, through_convolution
from clgraft.core.operators.dense.problem import DenseProblem
from clgraft.core.planning.implementation import register

register(DenseProblem, (cpu_panel, cpu, through_convolution))

__all__ = ["DenseProblem"]
