"""Registers the implementations, in order of preference."""

from clgraft.core.operators.ordering import ranks, scans, selects
from clgraft.core.operators.ordering.problem import TopKProblem
from clgraft.core.planning.implementation import register

register(TopKProblem, (scans, selects, ranks))
