"""Registers the implementations, in order of preference."""

from clgraft.core.operators.update import generated
from clgraft.core.operators.update.problem import UpdateProblem
from clgraft.core.planning.implementation import register

register(UpdateProblem, (generated,))
