"""Products of matrices: of batches, and of rows with weights."""

from __future__ import annotations

import math

from clgraft.core.errors import ProblemError
from clgraft.core.nn.builder import Build, Tensor
from clgraft.core.nn.shapes import transposed
from clgraft.core.operators.dense import DenseProblem
from clgraft.core.operators.matmul import MatMulProblem

# what becomes of a product x0, with a term x1; the order of both summands decides how they are rounded
SCALED = "alpha * x0"
WITH_TERM = "x0 + x1"
SCALED_WITH_TERM = "alpha * x0 + beta * x1"
TERM_WITH_SCALED = "beta * x1 + alpha * x0"


def batch_product(
    build: Build, a: Tensor, b: Tensor, *, transposed_a: bool = False, transposed_b: bool = False
) -> Tensor:
    """Return the products of matrices (..., m, k) and (..., k, c), or of their transposes; the other axes are equal."""
    outer = a.shape[:-2]
    rows, inner = a.shape[:-3:-1] if transposed_a else a.shape[-2:]
    columns = b.shape[-2 if transposed_b else -1]
    if a.ndim < 3 or b.shape != (*outer, *((columns, inner) if transposed_b else (inner, columns))):
        raise ProblemError(f"[matmul] got matrices of shapes {a.shape} and {b.shape}, expected batches that fit")
    a, b = (build.reshape(one, (math.prod(outer), *one.shape[-2:])) for one in (a, b))
    if transposed_a and transposed_b:
        a, transposed_a = transposed(build, a, (0, 2, 1)), False
    problem = MatMulProblem(math.prod(outer), rows, inner, columns, transposed_a, transposed_b, dtype=a.dtype)
    return build.reshape(build.add(problem, a, b)[0], (*outer, rows, columns))


def dense(build: Build, x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    """Return x w^T + b of rows x (rows, inputs) and weights w (outputs, inputs)."""
    problem = DenseProblem("forward", *x.shape, w.shape[0], bias=b is not None, dtype=x.dtype)
    return build.add(problem, x, w, *((b,) if b is not None else ()))[0]
