"""Local response normalisation: the problem and its implementations in order of preference."""

from clgraft.core.lrn import columns, elements
from clgraft.core.lrn.problem import LRNProblem

IMPLEMENTATIONS = (columns, elements)

__all__ = ["IMPLEMENTATIONS", "LRNProblem"]
