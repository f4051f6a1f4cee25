"""Products of matrices: of batches, and of rows with weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from clgraft.core.errors import ProblemError
from clgraft.core.nn.builder import Build, Tensor
from clgraft.core.nn.shapes import broadcast, transposed
from clgraft.core.operators.dense import DenseProblem
from clgraft.core.operators.matmul import MatMulProblem

# what becomes of a product x0, with a term x1; the order of both summands decides how they are rounded
SCALED = "alpha * x0"
WITH_TERM = "x0 + x1"
SCALED_WITH_TERM = "alpha * x0 + beta * x1"
TERM_WITH_SCALED = "beta * x1 + alpha * x0"


def scaled_sum(alpha: float, beta: float, *, term: bool = True, term_first: bool = False) -> str:
    """Return what becomes of a product: ``alpha`` of it, and ``beta`` of a term; empty if it stays as it is.

    Parameters
    ----------
    term : bool
        Whether there is a term.
    term_first : bool
        Whether it stands in front, which decides how the sum is rounded.
    """
    if not term:
        return "" if alpha == 1 else SCALED
    if alpha == beta == 1:
        return WITH_TERM
    return TERM_WITH_SCALED if term_first else SCALED_WITH_TERM


def is_bias(shape: Sequence[int], columns: int, alpha: float, beta: float) -> bool:
    """Return whether a term of a shape that is added to a product is one number for each of its columns."""
    return alpha == beta == 1 and math.prod(shape) == columns and tuple(shape[-1:]) == (columns,)


class Matrix(NamedTuple):
    """Matrices (..., rows, columns) as they are stored: with their last two axes exchanged if `transposed`."""

    stored: Tensor
    transposed: bool = False

    @property
    def t(self) -> Matrix:
        """The transposes."""
        return Matrix(self.stored, not self.transposed)


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


def weight_shape(x: Sequence[int], outputs: int, *, axis: int = 1, transposed: bool = False) -> tuple[int, int]:
    """Return the shape of the weights of `dense` for values of a shape."""
    inputs = math.prod(x[axis:])
    return (inputs, outputs) if transposed else (outputs, inputs)


def dense(
    build: Build, x: Tensor, w: Tensor, b: Tensor | None = None, *, axis: int = 1, transposed: bool = False
) -> Tensor:
    """Return x w^T + b.

    Parameters
    ----------
    x : Tensor
        The axes from `axis` on are inputs; those in front of it are kept.
    w : Tensor
        (outputs, inputs), or (inputs, outputs) if `transposed`.
    b : Tensor, optional
        (outputs,)
    """
    kept, outputs = x.shape[:axis], w.shape[1 if transposed else 0]
    sizes = math.prod(kept), math.prod(x.shape[axis:]), outputs
    problem = DenseProblem("forward", *sizes, transposed, b is not None, x.dtype)
    y = build.add(problem, x, w, *((b,) if b is not None else ()))[0]
    return build.reshape(y, (*kept, outputs))


def product(build: Build, a: Matrix, b: Matrix) -> Tensor:
    """Return the products of two batches of matrices in the type of a; transposed ones are read as they are stored."""
    read = build.cast(b.stored, a.stored.dtype)
    return batch_product(build, a.stored, read, transposed_a=a.transposed, transposed_b=b.transposed)


def matmul(build: Build, a: Tensor, b: Tensor, *, transposed_b: bool = False) -> Tensor:
    """Return the matrix product of values by NumPy's rules for two axes and more.

    Parameters
    ----------
    a, b : Tensor
        Of at least two axes.
    transposed_b : bool
        Whether the last two axes of b are swapped.

    Raises
    ------
    ProblemError
        If the shapes do not fit.
    """
    rows, inner = a.shape[-2:]
    columns, other = b.shape[-2:] if transposed_b else b.shape[:-3:-1]
    try:
        batch = tuple(int(size) for size in np.broadcast_shapes(a.shape[:-2], b.shape[:-2]))
    except ValueError:
        batch, other = (), -1
    if other != inner:
        raise ProblemError(f"[matmul] got matrices of shapes {a.shape} and {b.shape}, expected ones that fit")
    a, count = repeated(build, a, (*batch, rows, inner)), math.prod(batch)
    if math.prod(b.shape[:-2]) == 1:  # all matrices of a are rows of one
        problem = MatMulProblem(1, count * rows, inner, columns, False, transposed_b, dtype=a.dtype)
    else:
        b = repeated(build, b, (*batch, *b.shape[-2:]))
        problem = MatMulProblem(count, rows, inner, columns, False, transposed_b, dtype=a.dtype)
    return build.reshape(build.add(problem, a, b)[0], (*batch, rows, columns))


def repeated(build: Build, x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return a value broadcast to a shape."""
    if not math.prod(shape):
        return build.filled(shape, 0.0, x.dtype)
    return build.reshape(x, shape) if x.size == math.prod(shape) else broadcast(build, x, shape)


def rows_product(build: Build, a: Matrix, b: Matrix, bias: Tensor | None = None) -> Tensor:
    """Return a b plus a bias for each column, of two matrices, as a dense layer, or the gradient of its weights.

    Parameters
    ----------
    a, b : Matrix
        (rows, inner) and (inner, columns). One that is transposed is read as it is stored, but a where b is it too, or
        with a bias.
    bias : Tensor, optional
        (columns,)
    """
    rows, inner = a.stored.shape[::-1] if a.transposed else a.stored.shape
    columns = b.stored.shape[0 if b.transposed else 1]
    if a.transposed and not b.transposed and bias is None:
        problem = DenseProblem("backward_weight", inner, columns, rows, dtype=a.stored.dtype)
        return build.add(problem, b.stored, a.stored)[0]
    x = transposed(build, a.stored, (1, 0)) if a.transposed else a.stored
    problem = DenseProblem("forward", rows, inner, columns, not b.transposed, bias is not None, x.dtype)
    return build.add(problem, x, b.stored, *(() if bias is None else (bias,)))[0]
