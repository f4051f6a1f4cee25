"""Images sampled at given places: the problem; `implementations` lists what computes it."""

from clgraft.core.operators.sampling.problem import GridSampleProblem

__all__ = ["GridSampleProblem"]
