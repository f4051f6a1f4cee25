"""Averages of windows that share an image out, where their sizes differ, too."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from clgraft.core.errors import ProblemError
from clgraft.core.nn.builder import Build, Tensor
from clgraft.core.nn.pooling import pool_problem
from clgraft.core.operators.pooling import PoolProblem
from clgraft.core.operators.resampling import ResampleProblem
from clgraft.core.problem import ceil_div


def adaptive_average_pool(build: Build, x: Tensor, sizes: Sequence[int]) -> Tensor:
    """Return the averages of windows that share an image out, as PyTorch has them.

    The gradient is `adaptive_average_pool_gradient`; graphs derive none of weighted sums.

    Window i of an axis begins at floor(i * in / out) and ends in front of ceil((i + 1) * in / out). Where each of them
    has in / out elements this is `pool`, otherwise a weighted sum along each axis.

    Parameters
    ----------
    x : Tensor
        (n, c, ...) of one to three spatial axes.
    sizes : sequence of int
        Number of windows of each axis.
    """
    problem = _side_by_side(x, sizes)
    if problem:
        return build.add(problem, x)[0]
    for axis, count in enumerate(sizes, 2):
        x = _weighted(build, x, axis, _shares(x.shape[axis], count))
    return x


def adaptive_average_pool_gradient(build: Build, dy: Tensor, pixels: Sequence[int]) -> Tensor:
    """Return the gradient of `adaptive_average_pool` for images of so many pixels on each axis."""
    x = Tensor("", (*dy.shape[:2], *pixels), dy.dtype)
    problem = _side_by_side(x, dy.shape[2:])
    if problem:
        return build.add(problem.with_direction("backward"), dy)[0]
    for axis, size in enumerate(pixels, 2):
        dy = _weighted(build, dy, axis, _shares(size, dy.shape[axis]).T)
    return dy


def _side_by_side(x: Tensor, sizes: Sequence[int]) -> PoolProblem | None:
    """Return the pooling of equal windows side by side, if they are."""
    if any(size % count for size, count in zip(x.shape[2:], sizes)):
        return None
    kernel = tuple(size // count for size, count in zip(x.shape[2:], sizes))
    return pool_problem(x, "average", kernel, kernel)


def _shares(pixels: int, windows: int) -> np.ndarray:
    """Return the weight of each pixel in the average of each window, (windows, pixels)."""
    table = np.zeros((windows, pixels))
    for i in range(windows):
        begin, end = i * pixels // windows, ceil_div((i + 1) * pixels, windows)
        table[i, begin:end] = 1 / (end - begin)
    return table


def _weighted(build: Build, x: Tensor, axis: int, table: np.ndarray) -> Tensor:
    """Return the sums of elements along an axis with the weights of a table, of which most are 0."""
    if not x.size * table.size:
        raise ProblemError(f"[pool] got shape {x.shape} to average, expected elements")
    taps = int((table != 0).sum(1).max())
    index = np.argsort(table == 0, axis=1, kind="stable")[:, :taps].astype(np.int32)
    weight = np.take_along_axis(table, index, 1)
    outer, inner = math.prod(x.shape[:axis]), math.prod(x.shape[axis + 1 :])
    problem = ResampleProblem(outer, x.shape[axis], len(table), inner, taps, x.dtype)
    tables = [v.astype(a.dtype) for a, v in zip(problem.arguments()[1:3], (index, weight))]
    (y,) = build.add(problem, x, *map(build.constant, tables))
    return build.reshape(y, (*x.shape[:axis], len(table), *x.shape[axis + 1 :]))
