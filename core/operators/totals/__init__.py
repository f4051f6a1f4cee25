"""Sums over all elements of several arrays; `implementations` lists how."""

from clgraft.core.operators.totals.problem import TotalsProblem

__all__ = ["TotalsProblem"]
