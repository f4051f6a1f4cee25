"""Images of another size, and tensors with any axes resampled; and the sizes that frameworks ask for."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from clgraft.core.nn.builder import Build, Tensor
from clgraft.core.operators.interpolation import InterpolationProblem
from clgraft.core.operators.resampling import ResampleProblem, Resampling
from clgraft.core.operators.sampling import GridSampleProblem


def resized(
    build: Build,
    x: Tensor,
    size: Sequence[int],
    method: str,
    coordinates: str,
    rounding: str = "prefer_floor",
) -> Tensor:
    """Return images (n, c, ...) of a size; the words are those of `InterpolationProblem`."""
    return build.add(interpolation(x.shape, size, method, coordinates, rounding, x.dtype), x)[0]


def resized_gradient(
    build: Build, dy: Tensor, shape: Sequence[int], method: str, coordinates: str, rounding: str = "prefer_floor"
) -> Tensor:
    """Return the gradient of images of a shape that were resized."""
    problem = interpolation(shape, dy.shape[2:], method, coordinates, rounding, dy.dtype)
    return build.add(problem.with_direction("backward"), dy)[0]


def interpolation(
    shape: Sequence[int], size: Sequence[int], method: str, coordinates: str, rounding: str, dtype: str
) -> InterpolationProblem:
    """Return the problem that resizes images of a shape."""
    batch, channels, *pixels = shape
    return InterpolationProblem(
        "forward", method, batch, channels, tuple(pixels), tuple(size), coordinates, rounding, dtype
    )


def resampled(build: Build, x: Tensor, filters: Sequence[Resampling]) -> Tensor:
    """Return a value with its axes resampled, by a filter for each: as `resized` images where it can, or axis by axis.

    The method is that of ONNX's Resize (see `Resampling`).
    """
    moved = [axis for axis, one in enumerate(filters) if _changes(one)]
    if not moved:
        return x
    if 3 <= x.ndim <= 5 and min(moved) >= 2 and len({_words(filters[axis]) for axis in moved}) == 1:
        words = _words(filters[moved[0]])
        if words is not None:
            return resized(build, x, tuple(one.out_extent for one in filters[2:]), *words)
    weights = "float64" if x.dtype == "float64" else "float32"
    for axis in moved:
        index, weight = filters[axis].table()
        shape = (*x.shape[:axis], len(index), *x.shape[axis + 1 :])
        outer, inner = math.prod(x.shape[:axis]), math.prod(x.shape[axis + 1 :])
        problem = ResampleProblem(outer, x.shape[axis], len(index), inner, index.shape[1], x.dtype)
        table = build.constant(index), build.constant(weight.astype(weights))
        x = build.reshape(build.add(problem, x, *table)[0], shape)
    return x


def _changes(one: Resampling) -> bool:
    """Return whether a filter changes anything."""
    if one.in_extent != one.out_extent:
        return True
    index, weight = one.table()
    own = index == np.arange(len(index))[:, None]
    return bool(np.where(own, 0, weight).any() or (np.where(own, weight, 0).sum(1) != 1).any())


def _words(one: Resampling) -> tuple[str, str, str] | None:
    """Return the words of the `InterpolationProblem` that is the same; None if there is none."""
    whole = one.scale * one.in_extent == one.out_extent or one.scale == one.out_extent / one.in_extent
    plain = one.method in ("nearest", "linear") and not (one.antialias and one.scale < 1) and not one.exclude_outside
    is_known = one.coordinates in ("half_pixel", "half_pixel_one", "align_corners", "asymmetric")
    return (one.method, one.coordinates, one.rounding) if whole and plain and is_known else None


def with_value_outside(build: Build, y: Tensor, filters: Sequence[Resampling], value: float) -> Tensor:
    """Return a resampled value with a number where elements lie beyond the ends of what they were taken from."""
    inside = np.ones((1,) * y.ndim, bool)
    for axis, one in enumerate(filters):
        if one.out_extent == y.shape[axis]:
            inside = inside & ~one.outside().reshape([-1 if i == axis else 1 for i in range(y.ndim)])
    if inside.all():
        return y
    mask = build.constant(inside.astype(y.dtype))
    return build.pointwise("y0 = x0 != 0 ? x1 : value;", [mask, y], {"value": value})[0]


def scaled(size: int, scale: float) -> int:
    """Return a size times a scale, rounded down."""
    return math.floor(size * scale)


def scaled_in_single(size: int, scale: float, *, odd_apart: bool = False) -> int:
    """Return a size times a scale in single precision, rounded down, as MXNet has it.

    With `odd_apart` an odd size becomes (size - 1) scale + 1.
    """
    odd = size % 2 if odd_apart else 0
    return int(np.float32(scale) * np.float32(size - odd)) + odd


def most_taps(one: Resampling) -> float:
    """Return how many elements a resampled one depends on at most."""
    return 4 / min(one.scale, 1.0) + 4 if one.antialias else 4


def stretched(sizes: Sequence[int], wanted: Sequence[int]) -> list[float]:
    """Return the scale of each axis with which sizes become others."""
    return [after / before for before, after in zip(sizes, wanted)]


def scaled_alike(sizes: Sequence[int], wanted: Sequence[int], *, larger: bool) -> tuple[list[int], float]:
    """Return sizes times one scale, rounded, and the scale: with it they are not larger, or not smaller, than wanted.

    Parameters
    ----------
    larger : bool
        Whether they are not smaller.
    """
    scales = stretched(sizes, wanted)
    scale = max(scales) if larger else min(scales)
    return [math.floor(scale * size + 0.5) for size in sizes], scale


def next_of_parity(size: int, *, odd: bool, up: bool) -> int:
    """Return a size if it is odd, or even where `odd` is false; else the next one above or below it."""
    return size if size % 2 == odd else size + (1 if up else -1)


def zoomed(size: int, shrink: int, zoom: int) -> int:
    """Return the number of pixels when every `shrink`-th is kept, and then `zoom - 1` are put between two of them."""
    return (size - 1) // shrink * zoom + 1


def sampled(
    build: Build, x: Tensor, grid: Tensor, method: str, *, padding: str = "zeros", align_corners: bool = False
) -> Tensor:
    """Return images (n, c, ...) at the places of a grid (n, ..., axes); the words are those of `GridSampleProblem`."""
    problem = GridSampleProblem(
        method=method,
        batch=x.shape[0],
        channels=x.shape[1],
        in_size=x.shape[2:],
        out_size=grid.shape[1:-1],
        padding=padding,
        align_corners=align_corners,
        dtype=x.dtype,
    )
    return build.add(problem, x, grid)[0]
