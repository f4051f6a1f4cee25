"""Matrix products by the kernels of dense layers: one product, or many rows that meet the same matrix."""

from __future__ import annotations

from clgraft.core.errors import Declined
from clgraft.core.operators.dense.problem import DenseProblem
from clgraft.core.operators.matmul.problem import MatMulProblem
from clgraft.core.planning.delegation import delegate
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.launches import Launches

NAME = "through_dense"


def plan(problem: MatMulProblem, planner: Planner) -> Launches:
    """Plan a dense layer whose weights are b, or the gradient of such weights."""
    if problem.batch > 1 and not problem.shared_b:
        raise Declined("is for one product, or a shared b")
    if problem.transposed_a:
        dense = DenseProblem("backward_weight", problem.inner, problem.columns, problem.rows, dtype=problem.dtype)
        return delegate(planner, dense, {"x": "b", "dy": "a", "dw": "y"})
    dense = DenseProblem(
        direction="forward",
        batch=problem.batch * problem.rows,
        inputs=problem.inner,
        outputs=problem.columns,
        transposed=not problem.transposed_b,
        dtype=problem.dtype,
    )
    return delegate(planner, dense, {"x": "a", "w": "b", "y": "y"})
