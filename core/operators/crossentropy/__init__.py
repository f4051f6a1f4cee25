"""Cross entropy: the problem and its implementation."""

from clgraft.core.operators.crossentropy import direct
from clgraft.core.operators.crossentropy.problem import CrossEntropyProblem
from clgraft.core.planning.implementation import register

register(CrossEntropyProblem, (direct,))

__all__ = ["CrossEntropyProblem"]
