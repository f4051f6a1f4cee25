"""How outputs of pointwise problems are reduced."""

from __future__ import annotations

import math
from dataclasses import dataclass

from clgraft.core.errors import ProblemError
from clgraft.core.operators.pointwise.expression import Term, literal, read_value
from clgraft.core.operators.pointwise.loop import Fold

NAMED_FOLDS = {
    "sum": ("a + b", "0"),
    "prod": ("a * b", "1"),
    # a comparison with NaN is false: both keep a NaN, as numpy's do
    "max": ("a > b || isnan(a) ? a : b", "-INFINITY"),
    "min": ("a < b || isnan(a) ? a : b", "INFINITY"),
}


@dataclass(frozen=True)
class Reduction:
    """How one output is folded.

    Parameters
    ----------
    operator : str
        ``sum``, ``prod``, ``max``, ``min``, or ``fold`` for the given `combine`.
    axes : tuple of int
        The axes of the broadcast shape that are folded and left out of the output; negative ones count from the end.
        If empty, they follow from `shape`.
    shape : tuple of int, optional
        The output's shape. With `axes` it only has to have the right number of elements; without, it has to broadcast
        to the common shape, and every axis that it lacks or has as 1 is folded (as the gradient of broadcasting needs).
    combine, identity : str
        For ``fold``: an expression of ``a`` and ``b``, associative and commutative, and its neutral element.
    """

    operator: str = "sum"
    axes: tuple[int, ...] = ()
    shape: tuple[int, ...] | None = None
    combine: str = ""
    identity: str = ""


def expect(good: bool, got: str, expected: str) -> None:
    """Raise `ProblemError` unless `good`."""
    if not good:
        raise ProblemError(f"[pointwise] got {got}, expected {expected}")


def read_fold(reduction: Reduction) -> Fold:
    """Return a reduction's fold as C text.

    Raises
    ------
    ProblemError
        If its operator is unknown or its expressions cannot be read.
    """
    combine, identity = NAMED_FOLDS.get(reduction.operator, (reduction.combine, reduction.identity))
    named = reduction.operator in NAMED_FOLDS
    expect(
        named or reduction.operator == "fold", f"reduction {reduction.operator!r}", f"{sorted(NAMED_FOLDS)} or 'fold'"
    )
    expect(named or bool(combine and identity), "reduction 'fold' without its expressions", "combine and identity")
    term = read_value(combine, {"a": "(a)", "b": "(b)"}, "combine")
    expect({"a", "b"} <= term.reads, f"combine {combine!r}", "an expression of both a and b")
    return Fold(term, read_value(identity, {}, "identity") if identity != "0" else Term(literal(0.0)))


def settled(reduction: Reduction | None, common: tuple[int, ...], output: int) -> Reduction | None:
    """Return the same reduction with axes ascending and a shape, or None if it folds nothing."""
    if reduction is None:
        return None
    read_fold(reduction)
    for text in (reduction.combine, reduction.identity):
        expect("{" not in text and "}" not in text, f"reduction of y{output} with {text!r}", "no braces")
    ndim, axes, shape = len(common), reduction.axes, reduction.shape
    if axes:
        good = all(-ndim <= a < ndim for a in axes) and len({a % ndim for a in axes}) == len(axes)
        expect(good, f"axes {axes} of y{output}", f"different axes of {common}")
        axes = tuple(sorted(a % ndim for a in axes))
        left = tuple(size for axis, size in enumerate(common) if axis not in axes)
        shape = left if shape is None else tuple(int(size) for size in shape)
        expect(math.prod(shape) == math.prod(left), f"y{output} of shape {shape}", f"as many elements as {left}")
    elif shape is None:
        axes, shape = tuple(range(ndim)), ()
    else:
        shape = tuple(int(size) for size in shape)
        full = (1,) * (ndim - len(shape)) + shape
        good = len(full) == ndim and all(size in (1, whole) for size, whole in zip(full, common))
        expect(good, f"y{output} of shape {shape}", f"a shape that broadcasts to {common}")
        axes = tuple(axis for axis in range(ndim) if full[axis] == 1 and common[axis] != 1)
        if not axes and shape == common:
            return None
    return Reduction(
        reduction.operator, axes, shape, " ".join(reduction.combine.split()), " ".join(reduction.identity.split())
    )
