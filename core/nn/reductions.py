"""Sums, means and extremes over axes."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from clgraft.core.nn.builder import Build, Tensor
from clgraft.core.nn.formulas import assigned, renamed
from clgraft.core.operators.cumulative import CumulativeProblem
from clgraft.core.operators.pointwise import Reduction

# what is summed of each element x0, and its derivative
VALUES = {
    "sum": ("x0", "1"),
    "absolute": ("fabs(x0)", "(x0 > 0 ? 1 : x0 < 0 ? -1 : 0)"),
    "squares": ("x0 * x0", "2 * x0"),
    "mean": ("x0", "1"),
}


@dataclass(frozen=True)
class Fold:
    """A reduction.

    Attributes
    ----------
    element : str
        What is folded, of each element x0.
    operation : str
        The core's name of the fold: ``sum max min prod``.
    result : str
        What becomes of its result x0; ``count`` is the number of elements.
    """

    element: str
    operation: str
    result: str = "x0"

    def finished(self, count: int) -> str:
        """Return what becomes of the result for so many elements; empty if it stays."""
        return "" if self.result == "x0" else renamed(self.result, {"count": repr(float(count))})

    @property
    def keeps_one(self) -> bool:
        """Whether the result of one element is that element."""
        return self.element == "x0" and self.result in ("x0", MEAN)

    def factor(self, count: int) -> float:
        """Return what a sum of so many elements is multiplied by where the fold is a mean (NaN for none), else 1."""
        if self.result != MEAN:
            return 1.0
        return 1.0 / count if count else math.nan


MEAN = "x0 / count"
FOLDS = {
    "sum": Fold("x0", "sum"),
    "mean": Fold("x0", "sum", MEAN),
    "max": Fold("x0", "max"),
    "min": Fold("x0", "min"),
    "product": Fold("x0", "prod"),
    "absolute": Fold(VALUES["absolute"][0], "sum"),
    "squares": Fold(VALUES["squares"][0], "sum"),
    "length": Fold(VALUES["squares"][0], "sum", "sqrt(x0)"),
    "log_sum": Fold("x0", "sum", "log(x0)"),
    "dot": Fold("x0 * x1", "sum"),
}
# exponentials of elements less their maximum x1, and the logarithm of what their sum x0 would be without that
EXPONENTIALS = Fold("exp(x0 - (isfinite(x1) ? x1 : 0))", "sum")
LOG_OF_EXPONENTIALS = "log(x0) + (isfinite(x1) ? x1 : 0)"


def of_nothing(fold: str, dtype: str) -> float:
    """Return what one of `FOLDS` is without elements, in real numbers, whole ones or truth values, as numpy has it."""
    if dtype == "bool":
        low, high = 0.0, 1.0
    elif dtype.startswith(("int", "uint")):
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    else:
        low, high = -math.inf, math.inf
    known = {"product": 1.0, "max": low, "min": high, "mean": math.nan, "log_sum": -math.inf}
    return known.get(fold, 0.0)


def kept_shape(shape: Sequence[int], axes: Collection[int], keep: bool = True) -> tuple[int, ...]:
    """Return a shape with some axes as 1, or without them."""
    return tuple(1 if axis in axes else size for axis, size in enumerate(shape) if keep or axis not in axes)


def summed(build: Build, x: Tensor, axes: Collection[int], value: str = "sum", *, factor: float = 1.0) -> Tensor:
    """Return the sum over some axes of one of `VALUES`, or the ``mean``, times a factor; the axes stay as 1."""
    first, kept = build.here, kept_shape(x.shape, axes)
    text, slope = VALUES[value]
    scalars = {"factor": factor / max(1, math.prod(x.shape[axis] for axis in axes)) if value == "mean" else factor}
    (y,) = build.pointwise(f"y0 = factor * {text};", [x], scalars, (Reduction("sum", shape=kept),))

    def backward(build: Build, dys: tuple[Tensor | None, ...], wanted: tuple[bool, ...]) -> tuple[Tensor | None, ...]:
        (dy,) = dys
        assert dy is not None  # x says at least how often dy is repeated
        return build.pointwise(f"y0 = factor * x1 * {slope};", [x, build.reshape(dy, kept)], scalars)

    build.state_gradient(first, (x,), (y,), backward)
    return y


def folded(build: Build, x: Tensor, axes: Collection[int], operation: str) -> Tensor:
    """Return the ``sum mean max min`` over some axes, which stay as 1.

    The gradient of an extreme goes to every element that equals it.
    """
    first, kept = build.here, kept_shape(x.shape, axes)
    count = max(1, x.size // max(1, math.prod(kept)))
    factor = 1 / count if operation == "mean" else 1.0
    fold = Reduction("sum" if operation == "mean" else operation, shape=kept)
    (y,) = build.pointwise("y0 = x0;", [x], {"factor": factor}, (fold,), "factor")

    def backward(build: Build, dys: tuple[Tensor | None, ...], wanted: tuple[bool, ...]) -> tuple[Tensor | None, ...]:
        (dy,) = dys
        assert dy is not None
        dy = build.reshape(dy, kept)
        if operation in ("max", "min"):
            return build.pointwise("y0 = x1 == x2 ? x0 : 0;", [dy, x, y])
        return build.pointwise("y0 = factor * x0;", [dy, x], {"factor": factor})  # x says how often dy is repeated

    build.state_gradient(first, (x,), (y,), backward)
    return y


def by_fold(build: Build, fold: Fold, values: Sequence[Tensor], axes: Collection[int]) -> Tensor:
    """Return a fold of values of one shape over some axes, which stay as 1; a mean is a sum times a factor."""
    shape = values[0].shape
    factor = fold.factor(math.prod(shape[axis] for axis in axes))
    reduce = (Reduction(fold.operation, shape=kept_shape(shape, axes)),) if axes else ()
    given = ({}, "") if factor == 1.0 else ({"factor": factor}, "factor")
    return build.pointwise(assigned("y0", fold.element), values, given[0], reduce, given[1])[0]


def log_of_exponentials(build: Build, x: Tensor, axes: Collection[int]) -> Tensor:
    """Return the logarithm of the sum of exponentials over some axes, which stay as 1, without overflow."""
    top = by_fold(build, FOLDS["max"], [x], axes)
    total = by_fold(build, EXPONENTIALS, [x, top], axes)
    return build.pointwise(assigned("y0", LOG_OF_EXPONENTIALS), [total, top])[0]


def magnitudes(build: Build, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sums of the absolute values and of the squares of all elements, of one element each."""
    fold = Reduction("sum", shape=(1,))
    text = f"y0 = {VALUES['absolute'][0]}; y1 = {VALUES['squares'][0]};"
    first, second = build.pointwise(text, [build.reshape(x, (x.size,))], reduce=(fold, fold))
    return first, second


def added(build: Build, a: Tensor, b: Tensor) -> Tensor:
    """Return the sum of two values with as many elements."""
    return build.pointwise("y0 = x0 + x1;", [a, build.reshape(b, a.shape)])[0]


def cumulative(build: Build, x: Tensor, axis: int, fold: str, *, exclusive: bool = False, last: bool = False) -> Tensor:
    """Return the ``sum`` or ``product`` of all elements of an axis up to each one.

    Parameters
    ----------
    exclusive : bool
        Whether the element itself is left out.
    last : bool
        Whether the axis begins at its last element.
    """
    outer, inner = math.prod(x.shape[:axis]), math.prod(x.shape[axis + 1 :])
    problem = CumulativeProblem(fold, outer, x.shape[axis], inner, exclusive, last, x.dtype)
    return build.reshape(build.add(problem, x)[0], x.shape)
