"""Dense (fully connected) layers: the problem and its implementations in order of preference."""

from clgraft.core.dense import cpu, cpu_panel, through_convolution
from clgraft.core.dense.problem import DenseProblem

IMPLEMENTATIONS = (cpu_panel, cpu, through_convolution)

__all__ = ["IMPLEMENTATIONS", "DenseProblem"]
