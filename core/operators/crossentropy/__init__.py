"""Cross entropy: the problem; `implementations` lists what computes it."""

from clgraft.core.operators.crossentropy.problem import CrossEntropyProblem

__all__ = ["CrossEntropyProblem"]
