"""Products of matrices."""

from __future__ import annotations

import math

from clgraft.core.nn.formulas import renamed
from clgraft.core.nn.products import SCALED, SCALED_WITH_TERM
from clgraft.core.nn.reductions import FOLDS
from clgraft.core.operators.dense import DenseProblem
from clgraft.core.operators.matmul import MatMulProblem
from clgraft.plugins.onnx.lowering import ModelBuilder, broadcast
from clgraft.plugins.onnx.nodes import OnnxNode, operator
from clgraft.plugins.onnx.operators.reductions import kept_shape, reduced
from clgraft.plugins.onnx.operators.shapes import expanded
from clgraft.plugins.onnx.values import OnnxValue


def product(on: ModelBuilder, a: OnnxValue, b: OnnxValue, transposed_b: bool = False) -> OnnxValue:
    """Return the matrix product of values by NumPy's rules for more than two axes.

    Parameters
    ----------
    a, b : OnnxValue
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
        return on.pointwise(renamed(SCALED, {"alpha": repr(alpha)}), [y])
    return on.pointwise(renamed(SCALED_WITH_TERM, {"alpha": repr(alpha), "beta": repr(beta)}), [y, c])


@operator("Einsum")
def einsum(on: ModelBuilder, node: OnnxNode, *values: OnnxValue) -> OnnxValue:
    """Lower a sum of products over named axes: operands are joined two by two, by matrix products."""
    text = node.get("equation").replace(" ", "")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    node.expect(len(terms) == len(values), f"{len(values)} operands")
    named = [_letters(term, value.ndim) for term, value in zip(terms, values)]
    if arrow:
        dots = max((sum(name.isdigit() for name in names) for names in named), default=0)
        final = _letters(right, len(right.replace("...", "")) + ("..." in right) * dots)
    else:
        every = [name for names in named for name in names]
        digits = sorted({name for name in every if name.isdigit()})
        final = digits + sorted(name for name in set(every) if every.count(name) == 1 and not name.isdigit())
    for names in named:
        node.expect(len(set(names)) == len(names), "diagonals")
    total, names = values[0], named[0]
    for i, (value, other) in enumerate(zip(values[1:], named[1:]), 1):
        later = {name for rest in named[i + 1 :] for name in rest} | set(final)
        total, names = _contracted(on, total, names, value, other, later)
    gone = {axis for axis, name in enumerate(names) if name not in final}
    if gone:
        total = on.reshaped(reduced(on, total, gone, FOLDS["sum"]), kept_shape(total.shape, gone, False))
        names = [name for name in names if name in final]
    return on.transposed(total, [names.index(name) for name in final])


def _letters(term: str, ndim: int) -> list[str]:
    """Return the names of a term's axes; those of an ellipsis are digits, counted from the last one."""
    before, dots, after = term.partition("...")
    count = ndim - len(before) - len(after)
    if count < 0 or (count and not dots):
        raise ValueError(f"{term!r} for {ndim} axes")
    return [*before, *(str(count - 1 - i) for i in range(count)), *after]


def _contracted(
    on: ModelBuilder, a: OnnxValue, a_names: list[str], b: OnnxValue, b_names: list[str], later: set[str]
) -> tuple[OnnxValue, list[str]]:
    """Return the product of two values, summed over the names that nothing else has."""
    common = [name for name in a_names if name in b_names]
    batch = [name for name in common if name in later]
    summed = [name for name in common if name not in later]
    a_own = [name for name in a_names if name not in common]
    b_own = [name for name in b_names if name not in common]
    sizes = {**dict(zip(b_names, b.shape)), **{n: s for n, s in zip(a_names, a.shape) if s != 1 or n not in b_names}}
    a = expanded(
        on,
        on.transposed(a, [a_names.index(n) for n in (*batch, *a_own, *summed)]),
        [sizes[n] for n in (*batch, *a_own, *summed)],
    )
    b = expanded(
        on,
        on.transposed(b, [b_names.index(n) for n in (*batch, *summed, *b_own)]),
        [sizes[n] for n in (*batch, *summed, *b_own)],
    )
    groups = [math.prod(sizes[n] for n in names) for names in (batch, a_own, summed, b_own)]
    n, m, k, c = groups
    y = product(on, on.reshaped(a, (n, m, k)), on.reshaped(b, (n, k, c)))
    names = [*batch, *a_own, *b_own]
    return on.reshaped(y, [sizes[name] for name in names]), names
