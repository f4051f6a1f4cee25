"""Local response normalisation: the problem; `implementations` lists what computes it."""

from clgraft.core.operators.lrn.problem import LRNProblem

__all__ = ["LRNProblem"]
