"""Dense (fully connected) layers: the problem; `implementations` lists what computes it."""

from clgraft.core.operators.dense.problem import DenseProblem

__all__ = ["DenseProblem"]
