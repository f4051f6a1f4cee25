"""The greatest or smallest elements of an axis with their indices: the problem and its implementations."""

from clgraft.core.operators.ordering import ranks, scans, selects
from clgraft.core.operators.ordering.problem import TopKProblem
from clgraft.core.planning.implementation import register

register(TopKProblem, (scans, selects, ranks))

__all__ = ["TopKProblem"]
