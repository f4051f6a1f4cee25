"""Registers the implementations, in order of preference."""

from clgraft.core.operators.resampling import elements
from clgraft.core.operators.resampling.problem import ResampleProblem
from clgraft.core.planning.implementation import register

register(ResampleProblem, (elements,))
