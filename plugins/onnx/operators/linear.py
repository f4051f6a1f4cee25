"""Products of matrices."""

from __future__ import annotations

import math

from clgraft.core.operators.dense import DenseProblem
from clgraft.core.operators.matmul import MatMulProblem
from clgraft.plugins.onnx.lowering import Lowering, broadcast
from clgraft.plugins.onnx.nodes import Node, operator
from clgraft.plugins.onnx.operators.shapes import expanded
from clgraft.plugins.onnx.values import Value


def product(on: Lowering, a: Value, b: Value, transposed_b: bool = False) -> Value:
    """Return the matrix product of values by NumPy's rules for more than two axes.

    Parameters
    ----------
    a, b : Value
        Of at least two axes.
    transposed_b : bool
        Whether the last two axes of b are swapped.
    """
    rows, inner = a.shape[-2:]
    columns, other = b.shape[-2:] if transposed_b else b.shape[-1:-3:-1]
    if other != inner:
        raise ValueError(f"matrices of shapes {a.shape} and {b.shape}")
    batch = broadcast([a.shape[:-2], b.shape[:-2]])
    count, dtype = math.prod(batch), on.widest([a, b])
    final = (*batch, rows, columns)
    if math.prod(b.shape[:-2]) == 1:
        a = expanded(on, a, (*batch, rows, inner))
        problem = MatMulProblem(1, count * rows, inner, columns, False, transposed_b, False, dtype)
    else:
        a, b = expanded(on, a, (*batch, rows, inner)), expanded(on, b, (*batch, *b.shape[-2:]))
        problem = MatMulProblem(count, rows, inner, columns, False, transposed_b, False, dtype)
    (name,) = on.add(problem, on.tensor(a, dtype), on.tensor(b, dtype))
    return on.made(name, final, a.dtype, dtype)


@operator("MatMul")
def matrix_product(on: Lowering, node: Node, a: Value, b: Value) -> Value:
    """Lower a matrix product; vectors are matrices of one row or column."""
    wide_a = on.reshaped(a, (1, *a.shape)) if a.ndim == 1 else a
    wide_b = on.reshaped(b, (*b.shape, 1)) if b.ndim == 1 else b
    y = product(on, wide_a, wide_b)
    shape = list(y.shape)
    if b.ndim == 1:
        del shape[-1]
    if a.ndim == 1:
        del shape[-1 if b.ndim == 1 else -2]
    return on.reshaped(y, shape)


@operator("Gemm")
def gemm(on: Lowering, node: Node, a: Value, b: Value, c: Value | None = None) -> Value:
    """Lower alpha a b + beta c; the usual form is a dense layer."""
    alpha, beta = float(node.get("alpha", 1.0)), float(node.get("beta", 1.0))
    a = on.transposed(a, (1, 0)) if node.get("transA", 0) else a
    transposed = not node.get("transB", 0)
    (rows, inner), (first, second) = a.shape, b.shape
    columns, other = (second, first) if transposed else (first, second)
    if inner != other:
        raise ValueError(f"matrices of shapes {a.shape} and {b.shape}")
    bias = c is not None and alpha == beta == 1 and c.size == columns and c.shape[-1:] == (columns,)
    problem = DenseProblem("forward", rows, inner, columns, transposed, bias, on.carrier(a))
    reads = [a, b, *([c] if bias and c is not None else [])]
    y = on.made(on.add(problem, *(on.tensor(value) for value in reads))[0], (rows, columns), a.dtype)
    if bias or (c is None and alpha == 1):
        return y
    if c is None:
        return on.pointwise(f"{alpha!r} * x0", [y])
    return on.pointwise(f"{alpha!r} * x0 + {beta!r} * x1", [y, c])
