"""Sums, means and extremes over axes."""

from __future__ import annotations

import math
from collections.abc import Collection

from clgraft.core.nn.builder import Build, Tensor
from clgraft.core.operators.pointwise import Reduction

# what is summed of each element x0, and its derivative
VALUES = {
    "sum": ("x0", "1"),
    "absolute": ("fabs(x0)", "(x0 > 0 ? 1 : x0 < 0 ? -1 : 0)"),
    "squares": ("x0 * x0", "2 * x0"),
}


def kept_shape(x: Tensor, axes: Collection[int]) -> tuple[int, ...]:
    """Return a shape with some axes as 1."""
    return tuple(1 if axis in axes else size for axis, size in enumerate(x.shape))


def summed(build: Build, x: Tensor, axes: Collection[int], value: str = "sum", *, factor: float = 1.0) -> Tensor:
    """Return the sum over some axes of one of `VALUES` times a factor; the axes stay as 1."""
    first, kept = build.here, kept_shape(x, axes)
    text, slope = VALUES[value]
    scalars = {"factor": factor}
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
    first, kept = build.here, kept_shape(x, axes)
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
