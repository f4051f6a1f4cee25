"""Gradients of data and weights together: the problem and its implementations in order of preference."""

from clgraft.core.operators.gradients import in_kernel, in_turn
from clgraft.core.operators.gradients.problem import GradientsProblem
from clgraft.core.planning.implementation import register

register(GradientsProblem, (in_kernel, in_turn))

__all__ = ["GradientsProblem"]
