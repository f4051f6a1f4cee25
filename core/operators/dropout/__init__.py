"""Operators that draw random numbers, dropout and rectifiers with random slopes: the problem and its implementation."""

from clgraft.core.operators.dropout import philox
from clgraft.core.operators.dropout.problem import KEY_WORDS, DropoutProblem
from clgraft.core.planning.implementation import register

register(DropoutProblem, (philox,))

__all__ = ["KEY_WORDS", "DropoutProblem"]
