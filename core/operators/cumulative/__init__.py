"""Cumulative sums and products: the problem; `implementations` lists what computes it."""

from clgraft.core.operators.cumulative.problem import CumulativeProblem

__all__ = ["CumulativeProblem"]
