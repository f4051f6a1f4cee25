"""Elements by their indices, and their places as formulas and as tables; negative indices count from the end.

Places are those in an array as it lies in memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from clgraft.core.nn.builder import Build, Tensor
from clgraft.core.operators.indexing import GatherProblem, ScatterProblem

Sizes = Sequence[int]
NOWHERE = np.iinfo(np.int32).max  # a place beyond every array

BEYOND = "1e18"  # an index outside of every axis, also where it is part of a sum
# what an index x0 of an axis of x1 elements adds to the place in an array, where it moves on by x2
STEP = f"x0 >= -x1 && x0 < x1 ? (x0 < 0 ? x0 + x1 : x0) * x2 : {BEYOND}"


def _from_front(count: float) -> str:
    return f"(x0 < 0 ? x0 + {count!r} : x0)"


def place(count: int, step: int) -> str:
    """Return the place in an array of the index x0 of an axis of `count` elements that moves on by `step`, after x1."""
    size = float(count)
    return f"x0 >= (-{size!r}) && x0 < {size!r} ? {_from_front(size)} * {float(step)!r} + x1 : {BEYOND}"


def one_hot(count: int) -> str:
    """Return x2 where x1, one of `places_along`, is the index x0 of `count` elements, else x3."""
    return f"{_from_front(float(count))} == x1 ? x2 : x3"


def places_along(count: int, axes: int) -> np.ndarray:
    """Return 0, 1, 2, and so on along an axis that so many others of size 1 follow."""
    return np.arange(count, dtype=np.int64).reshape(count, *(1,) * axes)


def strides(sizes: Sizes) -> list[int]:
    """Return by how many places each axis of an array moves on."""
    return [math.prod(sizes[axis + 1 :]) for axis in range(len(sizes))]


def places_of(index: np.ndarray, sizes: Sizes) -> np.ndarray:
    """Return the places in an array of some sizes that tuples of indices on the last axis name."""
    from_front = np.where(index < 0, index + np.array(sizes, np.int64), index)
    return (from_front * strides(sizes)).sum(-1).astype(np.int64)


def places_without(axis: int, shape: Sizes, sizes: Sizes) -> np.ndarray:
    """Return the places in an array of elements of a box at its front, as if all had the index 0 of one axis.

    Parameters
    ----------
    axis : int
        That of the index 0; it has the size 1 in the result.
    shape, sizes : sequence of int
        Of the box, and of the array.
    """
    places = np.zeros((1,) * len(shape), np.int64)
    for other, (size, step) in enumerate(zip(shape, strides(sizes))):
        if other != axis:
            along = [-1 if i == other else 1 for i in range(len(shape))]
            places = places + np.arange(size, dtype=np.int64).reshape(along) * step
    return places


def moved_places(places: np.ndarray, old: Sizes, new: Sizes) -> np.ndarray:
    """Return places in an array of some sizes as those in one of others that holds it at its front."""
    return np.ravel_multi_index(np.unravel_index(places.reshape(-1), old), new).reshape(places.shape)


def reversed_first(lengths: Sizes, times: int, *, columns: int = 0) -> np.ndarray:
    """Return for each of some sequences (rows) which element stands at each time when its first ones are reversed.

    With `columns` the times are the rows, and so many columns belong to each sequence.
    """
    steps = np.arange(times)
    table = np.array([np.where(steps < length, length - 1 - steps, steps) for length in lengths], np.int64)
    return np.repeat(table.T, columns, axis=1) if columns else table


def window_counts(size: Sizes, reach: Sizes, stride: Sizes, pad: Sizes, pad_end: Sizes) -> list[int]:
    """Return how many windows of a reach lie in a padded image, along each axis."""
    return [max((i + p + q - k) // s + 1, 0) for i, k, s, p, q in zip(size, reach, stride, pad, pad_end)]


def window_places(size: Sizes, kernel: Sizes, *, stride: Sizes, dilate: Sizes, pad: Sizes, counts: Sizes) -> np.ndarray:
    """Return the pixel of each element of windows, element by element and window by window; `NOWHERE` for padding.

    The result is (elements, windows).

    Parameters
    ----------
    size : sequence of int
        Of the image.
    kernel, stride, dilate, pad : sequence of int
        Of the windows.
    counts : sequence of int
        How many there are, as `window_counts` returns it.
    """
    place, inside = np.zeros((1, 1), np.int64), np.ones((1, 1), bool)
    for i, k, s, d, p, count in zip(size, kernel, stride, dilate, pad, counts):
        at = np.arange(k)[:, None] * d + np.arange(count) * s - p
        good = (at >= 0) & (at < i)
        place = (place[:, None, :, None] * i + at[None, :, None, :]).reshape(len(place) * k, -1)
        inside = (inside[:, None, :, None] & good[None, :, None, :]).reshape(place.shape)
    return np.where(inside, place, NOWHERE)


def images_of_columns(shape: Sizes, size: Sizes, kernel: Sizes) -> tuple[tuple[int, int, int], tuple[int, ...]]:
    """Return how columns (n, c * taps, windows) become images of a size: the sizes for `scattered`, and the shape."""
    channels = shape[1] // math.prod(kernel)
    return (shape[0] * channels, math.prod(size), 1), (shape[0], channels, *size)


def gathered(
    build: Build, x: Tensor, index: Tensor, axis: int, shape: Sizes, *, count: int, sharing: str = "shared"
) -> Tensor:
    """Return elements of an axis by their index, in a shape.

    Parameters
    ----------
    index : Tensor
        int32.
    count : int
        How many elements there are in the place of the axis.
    sharing : str
        As of `GatherProblem`: whether all slices have one index, each row one, or each element.
    """
    outer, inner = math.prod(x.shape[:axis]), math.prod(x.shape[axis + 1 :])
    problem = GatherProblem(outer, x.shape[axis], inner, count, sharing, x.dtype)
    return build.reshape(build.add(problem, x, index)[0], shape)


def scattered(
    build: Build,
    updates: Tensor,
    index: Tensor,
    sizes: Sequence[int],
    shape: Sizes,
    *,
    count: int,
    into: Tensor | None = None,
    sharing: str = "shared",
    combine: str = "set",
) -> Tensor:
    """Return an array, or zeros, that takes in updates by their index, in a shape.

    Parameters
    ----------
    updates, index : Tensor
        The index is int32.
    sizes : sequence of int
        Of the array before, along and after the axis of the index.
    count : int
        How many elements the updates have in the place of the axis.
    into : Tensor, optional
        The array.
    sharing, combine : str
        As of `ScatterProblem`: ``set add mul max min``.
    """
    problem = ScatterProblem(*sizes, count, sharing, updates.dtype, combine, into is None)
    return build.reshape(build.add(problem, *(() if into is None else (into,)), index, updates)[0], shape)
