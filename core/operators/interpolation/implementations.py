"""Registers the implementations, in order of preference."""

from clgraft.core.operators.interpolation import elements, rows
from clgraft.core.operators.interpolation.problem import InterpolationProblem
from clgraft.core.planning.implementation import register

register(InterpolationProblem, (rows, elements))
