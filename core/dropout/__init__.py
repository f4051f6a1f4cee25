"""Operators that draw random numbers, dropout and rectifiers with random slopes: the problem and its implementation."""

from clgraft.core.dropout import philox
from clgraft.core.dropout.problem import DropoutProblem

IMPLEMENTATIONS = (philox,)

__all__ = ["IMPLEMENTATIONS", "DropoutProblem"]
