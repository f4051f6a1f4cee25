"""Batches of matrix products by the kernels of grouped convolutions: each product is a group of 1x1 filters."""

from __future__ import annotations

from clgraft.core.operators.conv.problem import ConvProblem
from clgraft.core.operators.matmul.problem import MatMulProblem
from clgraft.core.planning.delegation import delegate
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.launches import Launches

NAME = "through_groups"


def plan(problem: MatMulProblem, planner: Planner) -> Launches:
    """Plan one image whose groups of channels are the batch.

    The pixels are the columns of b, or the sum's terms where b is transposed; the weights are a, or y.
    """
    n, m, k, c = problem.batch, problem.rows, problem.inner, problem.columns
    if problem.shared_b:  # the rows of all products meet the same matrix
        n, m = 1, n * m
    if problem.transposed_a:
        convolution = ConvProblem("backward_data", 1, n * m, n * k, (c,), (1,), groups=n, dtype=problem.dtype)
        return delegate(planner, convolution, {"w": "a", "dy": "b", "dx": "y"})
    if problem.transposed_b:
        convolution = ConvProblem("backward_filter", 1, n * c, n * m, (k,), (1,), groups=n, dtype=problem.dtype)
        return delegate(planner, convolution, {"dy": "a", "x": "b", "dw": "y"})
    convolution = ConvProblem("forward", 1, n * k, n * m, (c,), (1,), groups=n, dtype=problem.dtype)
    return delegate(planner, convolution, {"w": "a", "x": "b", "y": "y"})
