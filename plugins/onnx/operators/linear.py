"""Products of matrices."""

from __future__ import annotations

from clgraft.core.nn import products as nn
from clgraft.core.nn.einsum import contracted, named_axes
from clgraft.core.nn.formulas import renamed
from clgraft.plugins.onnx.lowering import ModelBuilder
from clgraft.plugins.onnx.nodes import OnnxNode, operator
from clgraft.plugins.onnx.values import OnnxValue


def product(on: ModelBuilder, a: OnnxValue, b: OnnxValue) -> OnnxValue:
    """Return the matrix product of values of at least two axes by NumPy's rules for more."""
    dtype = on.widest([a, b])
    return on.taken(nn.matmul(on.build, on.given(a, dtype), on.given(b, dtype)), a.dtype)


@operator("MatMul")
def matrix_product(on: ModelBuilder, node: OnnxNode, a: OnnxValue, b: OnnxValue) -> OnnxValue:
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
def gemm(on: ModelBuilder, node: OnnxNode, a: OnnxValue, b: OnnxValue, c: OnnxValue | None = None) -> OnnxValue:
    """Lower alpha a b + beta c; the usual form is a dense layer."""
    alpha, beta = float(node.get("alpha", 1.0)), float(node.get("beta", 1.0))
    a = on.transposed(a, (1, 0)) if node.get("transA", 0) else a
    transposed, carrier = bool(node.get("transB", 0)), on.carrier(a)
    inner, (columns, other) = a.shape[1], b.shape if transposed else b.shape[::-1]
    if inner != other:
        raise ValueError(f"matrices of shapes {a.shape} and {b.shape}")
    bias = c is not None and nn.is_bias(c.shape, columns, alpha, beta)
    matrices = nn.Matrix(on.given(a, carrier)), nn.Matrix(on.given(b, carrier), transposed)
    added = on.build.reshape(on.given(c, carrier), (columns,)) if bias and c is not None else None
    y = on.taken(nn.rows_product(on.build, *matrices, added), a.dtype)
    text = "" if bias else nn.scaled_sum(alpha, beta, term=c is not None)
    if not text:
        return y
    values = [y] if c is None else [y, c]
    return on.pointwise(renamed(text, {"alpha": repr(alpha), "beta": repr(beta)}), values)


@operator("Einsum")
def einsum(on: ModelBuilder, node: OnnxNode, *values: OnnxValue) -> OnnxValue:
    """Lower a sum of products over named axes: operands are joined two by two, by matrix products."""
    text = node.get("equation")
    node.expect(text.partition("->")[0].count(",") + 1 == len(values), f"{len(values)} operands")
    named, final = named_axes(text, [value.ndim for value in values])
    for names in named:
        node.expect(len(set(names)) == len(names), "diagonals")
    return on.taken(contracted(on.build, [on.given(value) for value in values], named, final), values[0].dtype)
