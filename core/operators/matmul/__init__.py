"""Products of batches of matrices: the problem; `implementations` lists what computes it."""

from clgraft.core.operators.matmul.problem import MatMulProblem

__all__ = ["MatMulProblem"]
