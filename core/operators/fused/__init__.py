"""Layers with what follows them: the problem; `implementations` lists what computes it."""

from clgraft.core.operators.fused.problem import FusedProblem

__all__ = ["FusedProblem"]
