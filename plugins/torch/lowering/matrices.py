"""Products of matrices."""

from __future__ import annotations

import torch

from clgraft.core.nn import products as nn
from clgraft.core.nn.formulas import assigned, names_in
from clgraft.core.nn.reductions import FOLDS
from clgraft.plugins.torch.lowering.builder import Builder, lowers
from clgraft.plugins.torch.lowering.values import NotLowered, Operand

aten = torch.ops.aten


@lowers(aten.mm.default)
def mm(build: Builder, a: Operand, b: Operand) -> Operand:
    """Return a b; a transposed one is read as it is stored."""
    return _dense(build, a, b, None)


@lowers(aten.addmm.default)
def addmm(build: Builder, bias: Operand, a: Operand, b: Operand, beta: float = 1, alpha: float = 1) -> Operand:
    """Return alpha a b + beta bias; the bias is not read where beta is 0."""
    if nn.is_bias(bias.shape, b.shape[1], alpha, beta):
        return _dense(build, a, b, bias)
    return _added(build, bias, mm(build, a, b), beta, alpha)


def _added(build: Builder, x: Operand, found: Operand, beta: float, alpha: float) -> Operand:
    """Return beta x + alpha times a product; x is not read where beta is 0."""
    text = nn.scaled_sum(alpha, beta, term=bool(beta), term_first=True)
    if not text:
        return found
    scalars = {name: value for name, value in (("beta", beta), ("alpha", alpha)) if name in names_in(text)}
    return build.pointwise(assigned("y0", text), [found, x] if beta else [found], scalars)[0]


def _dense(build: Builder, a: Operand, b: Operand, bias: Operand | None) -> Operand:
    added = None if bias is None else build.given(bias, a.dtype, b.shape[1:])
    b = build.cast(b, a.dtype)
    return build.taken(nn.rows_product(build.nn, build.matrix(a), build.matrix(b), added))  # type: ignore[no-any-return]


def product(build: Builder, a: Operand, b: Operand) -> Operand:
    """Return a b for operands of one batch of matrices, in their last two axes; one transposed is read as it is stored.

    Parameters
    ----------
    a, b : Operand
        (..., rows, inner) and (..., inner, columns), with the same leading axes.
    """
    *batch, rows, inner = a.shape
    columns = b.shape[-1]
    if not inner:
        return build.filled((*batch, rows, columns), 0.0, a.dtype)
    if not rows * columns:
        raise NotLowered(f"[torch] got matrices of {a.shape} and {b.shape}, expected rows and columns")
    return build.taken(nn.product(build.nn, build.matrix(a), build.matrix(b)))  # type: ignore[no-any-return]


@lowers(aten.bmm.default)
def bmm(build: Builder, a: Operand, b: Operand) -> Operand:
    """Return the products of two batches of matrices."""
    return product(build, a, b)


@lowers(aten.baddbmm.default)
def baddbmm(build: Builder, x: Operand, a: Operand, b: Operand, beta: float = 1, alpha: float = 1) -> Operand:
    """Return beta x + alpha a b for batches of matrices; x is not read where beta is 0."""
    return _added(build, x, product(build, a, b), beta, alpha)


@lowers(aten.mv.default)
def mv(build: Builder, a: Operand, x: Operand) -> Operand:
    """Return the product of a matrix and a vector."""
    return build.reshaped(mm(build, a, build.reshaped(x, (*x.shape, 1))), a.shape[:1])


@lowers(aten.dot.default)
def dot(build: Builder, x: Operand, y: Operand) -> Operand:
    """Return the sum of the products of two vectors' elements."""
    return build.reduced(FOLDS["dot"], [x, y], [0], False)
