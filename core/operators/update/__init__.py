"""Changes arrays in place, element by element, as optimizers change parameters: the problem and its implementation."""

from clgraft.core.operators.update import generated
from clgraft.core.operators.update.problem import UpdateProblem
from clgraft.core.planning.implementation import register

register(UpdateProblem, (generated,))

__all__ = ["UpdateProblem"]
