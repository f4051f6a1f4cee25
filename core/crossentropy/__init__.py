"""Cross entropy: the problem and its implementation."""

from clgraft.core.crossentropy import direct
from clgraft.core.crossentropy.problem import CrossEntropyProblem

IMPLEMENTATIONS = (direct,)

__all__ = ["IMPLEMENTATIONS", "CrossEntropyProblem"]
