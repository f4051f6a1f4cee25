"""Registers the implementations, in order of preference."""

from clgraft.core.operators.lrn import columns, elements
from clgraft.core.operators.lrn.problem import LRNProblem
from clgraft.core.planning.implementation import register

register(LRNProblem, (columns, elements))
