"""Registers the implementations, in order of preference."""

from clgraft.core.operators.update import generated, launched_together
from clgraft.core.operators.update.problem import UpdateProblem
from clgraft.core.operators.update.together import UpdatesProblem
from clgraft.core.planning.implementation import register

register(UpdateProblem, (generated,))
register(UpdatesProblem, (launched_together,))
