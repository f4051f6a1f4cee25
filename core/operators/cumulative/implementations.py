"""Registers the implementations, in order of preference."""

from clgraft.core.operators.cumulative import lines
from clgraft.core.operators.cumulative.problem import CumulativeProblem
from clgraft.core.planning.implementation import register

register(CumulativeProblem, (lines,))
