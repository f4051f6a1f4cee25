"""The greatest or smallest elements of an axis with their indices; `implementations` lists what computes them."""

from clgraft.core.operators.ordering.problem import TopKProblem

__all__ = ["TopKProblem"]
