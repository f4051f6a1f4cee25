"""Sums of products over named axes: operands are joined two by two, by products of matrices."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from clgraft.core.errors import ProblemError
from clgraft.core.nn.builder import Build, Tensor
from clgraft.core.nn.products import matmul, repeated
from clgraft.core.nn.reductions import kept_shape
from clgraft.core.nn.shapes import permuted
from clgraft.core.operators.pointwise import Reduction


def named_axes(equation: str, axes: Sequence[int]) -> tuple[list[list[str]], list[str]]:
    """Return the names of each operand's axes, and those of the result; an ellipsis stands for axes named by digits.

    Parameters
    ----------
    equation : str
        Such as ``bij,bjk->bik``. Without an arrow the result has the names that occur once, in order.
    axes : sequence of int
        How many each operand has.

    Raises
    ------
    ProblemError
        If an operand has not the axes that its term names.
    """
    left, arrow, right = equation.replace(" ", "").partition("->")
    named = [_letters(term, count) for term, count in zip(left.split(","), axes)]
    if arrow:
        dots = max((sum(name.isdigit() for name in names) for names in named), default=0)
        return named, _letters(right, len(right.replace("...", "")) + ("..." in right) * dots)
    every = [name for names in named for name in names]
    digits = sorted({name for name in every if name.isdigit()})
    return named, digits + sorted(name for name in set(every) if every.count(name) == 1 and not name.isdigit())


def contracted(build: Build, values: Sequence[Tensor], named: Sequence[list[str]], final: Sequence[str]) -> Tensor:
    """Return the sum of products over all names that the result does not have; no operand has a name twice."""
    total, names = values[0], named[0]
    for i, (value, other) in enumerate(zip(values[1:], named[1:]), 1):
        later = {name for rest in named[i + 1 :] for name in rest} | set(final)
        total, names = _joined(build, total, names, value, other, later)
    gone = {axis for axis, name in enumerate(names) if name not in final}
    if gone:
        kept = kept_shape(total.shape, gone)
        fold = () if kept == total.shape else (Reduction("sum", shape=kept),)
        (summed,) = build.pointwise("y0 = x0;", [total], reduce=fold)
        total = build.reshape(summed, kept_shape(total.shape, gone, False))
        names = [name for name in names if name in final]
    return permuted(build, total, [names.index(name) for name in final])


def _letters(term: str, ndim: int) -> list[str]:
    """Return the names of a term's axes; those of an ellipsis are digits, counted from the last one."""
    before, dots, after = term.partition("...")
    count = ndim - len(before) - len(after)
    if count < 0 or (count and not dots):
        raise ProblemError(f"[einsum] got {ndim} axes for {term!r}, expected as many as it names")
    return [*before, *(str(count - 1 - i) for i in range(count)), *after]


def _joined(
    build: Build, a: Tensor, a_names: list[str], b: Tensor, b_names: list[str], later: Collection[str]
) -> tuple[Tensor, list[str]]:
    """Return the product of two values, summed over the names that nothing else has."""
    common = [name for name in a_names if name in b_names]
    batch = [name for name in common if name in later]
    summed = [name for name in common if name not in later]
    a_own = [name for name in a_names if name not in common]
    b_own = [name for name in b_names if name not in common]
    sizes = {**dict(zip(b_names, b.shape)), **{n: s for n, s in zip(a_names, a.shape) if s != 1 or n not in b_names}}

    def laid(x: Tensor, own: list[str], order: list[str]) -> Tensor:
        turned = permuted(build, x, [own.index(name) for name in order])
        return repeated(build, turned, tuple(sizes[name] for name in order))

    a, b = laid(a, a_names, [*batch, *a_own, *summed]), laid(b, b_names, [*batch, *summed, *b_own])
    n, m, k, c = (math.prod(sizes[name] for name in names) for names in (batch, a_own, summed, b_own))
    y = matmul(build, build.reshape(a, (n, m, k)), build.reshape(b, (n, k, c)))
    names = [*batch, *a_own, *b_own]
    return build.reshape(y, tuple(sizes[name] for name in names)), names
