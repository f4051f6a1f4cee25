"""Operators that draw random numbers, dropout and rectifiers with random slopes, and `implementations` of them."""

from clgraft.core.operators.dropout.problem import KEY_WORDS, DropoutProblem

__all__ = ["KEY_WORDS", "DropoutProblem"]
