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


def adaptive_average_pool(build: Build, x: Tensor, sizes: Sequence[int], *, learned: bool = True) -> Tensor:
    """Return the averages of windows that share an image out, which begin and end as those of `adaptive_max_pool`.

    Where each of them has in / out elements this is `pool`, otherwise a weighted sum along each axis.

    Parameters
    ----------
    x : Tensor
        (n, c, ...) of one to three spatial axes.
    sizes : sequence of int
        Number of windows of each axis.
    learned : bool
        Whether a gradient is stated; one that asks for `adaptive_average_pool_gradient` itself needs none.

    Raises
    ------
    ProblemError
        If there is no window, or no element where they have different sizes.
    """
    if len(sizes) != x.ndim - 2 or min(sizes) < 1:
        raise ProblemError(f"[pool] got output_size {tuple(sizes)}, expected {x.ndim - 2} numbers from 1")
    problem, first, pixels = _side_by_side(x, sizes), build.here, x.shape[2:]
    if problem:
        return build.add(problem, x)[0]
    y, shares = x, [_shares(size, count) for size, count in zip(pixels, sizes)]
    for axis, table in enumerate(shares, 2):
        y = _weighted(build, y, axis, [build.constant(one) for one in _tables(y, axis, table)])
    if learned:
        given = _GradientTables(build, y, [table.T for table in shares])
        build.state_gradient(first, (x,), (y,), lambda build, dys, wanted: (given.sums(build, dys[0]),))
    return y


def adaptive_average_pool_gradient(build: Build, dy: Tensor, pixels: Sequence[int]) -> Tensor:
    """Return the gradient of `adaptive_average_pool` for images of so many pixels on each axis."""
    x = Tensor("", (*dy.shape[:2], *pixels), dy.dtype)
    problem = _side_by_side(x, dy.shape[2:])
    if problem:
        return build.add(problem.with_direction("backward"), dy)[0]
    tables = [_shares(size, count).T for size, count in zip(pixels, dy.shape[2:])]
    return _GradientTables(build, dy, tables).sums(build, dy)


class _GradientTables:
    """The constants of a gradient, which is made of weighted sums along each axis.

    Parameters
    ----------
    build : Build
        That of the forward pass, to which constants belong.
    dy : Tensor
    tables : sequence of numpy.ndarray
        For each axis the share of each window in each pixel.
    """

    def __init__(self, build: Build, dy: Tensor, tables: Sequence[np.ndarray]) -> None:
        self._constants, shape = [], list(dy.shape)
        for axis, table in enumerate(tables, 2):
            given = _tables(Tensor("", tuple(shape), dy.dtype), axis, table)
            self._constants.append([build.constant(one) for one in given])
            shape[axis] = len(table)

    def sums(self, build: Build, dy: Tensor | None) -> Tensor:
        """Return the gradient of the images."""
        assert dy is not None
        for axis, given in enumerate(self._constants, 2):
            dy = _weighted(build, dy, axis, given)
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


def _problem(x: Tensor, axis: int, rows: int, taps: int) -> ResampleProblem:
    outer, inner = math.prod(x.shape[:axis]), math.prod(x.shape[axis + 1 :])
    return ResampleProblem(outer, x.shape[axis], rows, inner, taps, x.dtype)


def _tables(x: Tensor, axis: int, table: np.ndarray) -> list[np.ndarray]:
    """Return the places and weights of the elements of each row of a table of weights, of which most are 0."""
    if not x.size * table.size:
        raise ProblemError(f"[pool] got shape {x.shape} to average, expected elements")
    taps = int((table != 0).sum(1).max())
    index = np.argsort(table == 0, axis=1, kind="stable")[:, :taps]
    arguments = _problem(x, axis, len(table), taps).arguments()[1:3]
    return [v.astype(a.dtype) for a, v in zip(arguments, (index, np.take_along_axis(table, index, 1)))]


def _weighted(build: Build, x: Tensor, axis: int, tables: Sequence[Tensor]) -> Tensor:
    """Return the sums of elements along an axis by places and weights."""
    rows, taps = tables[0].shape
    (y,) = build.add(_problem(x, axis, rows, taps), x, *tables)
    return build.reshape(y, (*x.shape[:axis], rows, *x.shape[axis + 1 :]))
