"""Registers the implementations, in order of preference."""

from clgraft.core.operators.dropout import philox
from clgraft.core.operators.dropout.problem import DropoutProblem
from clgraft.core.planning.implementation import register

register(DropoutProblem, (philox,))
