"""Registers the implementations, in order of preference."""

from clgraft.core.operators.crossentropy import direct
from clgraft.core.operators.crossentropy.problem import CrossEntropyProblem
from clgraft.core.planning.implementation import register

register(CrossEntropyProblem, (direct,))
