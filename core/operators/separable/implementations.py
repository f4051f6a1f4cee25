"""Registers the implementations, in order of preference."""

from clgraft.core.operators.separable import in_kernel, in_turn
from clgraft.core.operators.separable.problem import SeparableProblem
from clgraft.core.planning.implementation import register

register(SeparableProblem, (in_kernel, in_turn))
