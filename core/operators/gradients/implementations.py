"""Registers the implementations, in order of preference."""

from clgraft.core.operators.gradients import in_kernel, in_turn
from clgraft.core.operators.gradients.problem import GradientsProblem
from clgraft.core.planning.implementation import register

register(GradientsProblem, (in_kernel, in_turn))
