"""Whole numbers that stand for real ones, number = (whole - zero) scale (Jacob et al. 2018), as formulas."""

from __future__ import annotations

import numpy as np

from clgraft.core.nn.builder import Build, Tensor
from clgraft.core.nn.formulas import assigned
from clgraft.core.nn.reductions import FOLDS, by_fold
from clgraft.core.problem import ceil_div

# of whole numbers x0, then the zero point, then the scale
DEQUANTIZED = "(x0 - x1) * x2"
DEQUANTIZED_WITHOUT_ZERO = "x0 * x1"
CENTRED = "x0 - x1"
# the scale of a product of quantized numbers, of the scales of both and of the result
PRODUCT_SCALE = "x0 * x1 / x2"
# scale and zero point of bytes that hold all numbers between x0 and x1, and zero
BYTES_SCALE = "(fmax(x1, 0) - fmin(x0, 0)) / 255"
BYTES_ZERO = "clamp(rint(0 - fmin(x0, 0) / x1), 0, 255)"


def block_size(size: int, count: int) -> int:
    """Return how many elements of an axis share each of so many scales; the last one may have fewer."""
    return ceil_div(size, count)


def bytes_scale_and_zero(build: Build, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the scale and the zero point, numbers without axes, with which bytes hold all elements, and zero."""
    axes = [axis for axis, size in enumerate(x.shape) if size != 1]
    low, high = (build.reshape(by_fold(build, FOLDS[fold], [x], axes), ()) for fold in ("min", "max"))
    (scale,) = build.pointwise(assigned("y0", BYTES_SCALE), [low, high])
    (zero,) = build.pointwise(assigned("y0", BYTES_ZERO), [low, scale])
    return scale, zero


def quantized(dtype: str, *, zero: bool) -> str:
    """Return the nearest whole numbers of x0 / x1, halves to the even one, plus x2 if there is a zero point."""
    return _within(f"rint(x0 / x1){' + x2' if zero else ''}", dtype)


def requantized(dtype: str) -> str:
    """Return the whole numbers of a product x0 with `PRODUCT_SCALE` x1, plus the zero point x2."""
    return _within("rint(x0 * x1) + x2", dtype)


def _within(text: str, dtype: str) -> str:
    """Return a value within the range of a type."""
    ends = np.iinfo(dtype)
    return f"clamp({text}, {float(ends.min)!r}, {float(ends.max)!r})"
