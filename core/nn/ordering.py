"""The greatest or smallest elements of an axis, where they stand, and elements by places that were computed."""

from __future__ import annotations

import math

import numpy as np

from clgraft.core.nn.builder import Build, Tensor
from clgraft.core.operators.cast import CastProblem
from clgraft.core.operators.indexing import GatherProblem, ScatterProblem
from clgraft.core.operators.ordering import TopKProblem
from clgraft.core.operators.pointwise import Reduction


def first_elements(
    build: Build, x: Tensor, axis: int, count: int, *, smallest: bool = False, last: bool = False
) -> tuple[Tensor, Tensor]:
    """Return the greatest or smallest elements of an axis in their order, and their places (int32).

    Of equal elements the first one comes first, or with `last` the last one.
    """
    outer, inner = math.prod(x.shape[:axis]), math.prod(x.shape[axis + 1 :])
    problem = TopKProblem(outer, x.shape[axis], inner, count, smallest, last, dtype=x.dtype)
    shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
    values, places = build.add(problem, x)
    return build.reshape(values, shape), build.reshape(places, shape)


def marked(build: Build, x: Tensor, places: Tensor, axis: int) -> Tensor:
    """Return 1 at some places of an axis, and 0 at the others of the shape of x; no gradient passes."""
    first = build.here
    outer, inner, count = math.prod(x.shape[:axis]), math.prod(x.shape[axis + 1 :]), places.shape[axis]
    problem = ScatterProblem(outer, x.shape[axis], inner, count, "elements", x.dtype, "set", onto_zero=True)
    (y,) = build.add(problem, places, build.filled((outer, count, inner), 1.0, x.dtype))
    y = build.reshape(y, x.shape)
    build.state_gradient(first, (x,), (y,), lambda build, dys, wanted: (None,))
    return y


def as_numbers(build: Build, places: Tensor, dtype: str) -> Tensor:
    """Return places as real numbers."""
    (y,) = build.add(CastProblem(places.size, "int32", dtype), places)
    return build.reshape(y, places.shape)


def elements_at(build: Build, x: Tensor, index: Tensor) -> Tensor:
    """Return parts of x by the places of its first axes, real numbers: index (axes, ...) -> (..., the other axes)."""
    axes, shape = index.shape[0], index.shape[1:]
    lines, extent = index.size // max(1, axes), math.prod(x.shape[:axes])
    steps = np.array([math.prod(x.shape[axis + 1 : axes]) for axis in range(axes)], index.dtype)
    rows = [build.reshape(index, (axes, lines)), build.reshape(build.constant(steps), (axes, 1))]
    fold = (Reduction("sum", shape=(1, lines)),)
    (flat,) = build.pointwise("y0 = trunc(x0) * x1;", rows, reduce=fold)
    places = build.cast(build.reshape(flat, (lines,)), "int32")
    problem = GatherProblem(1, extent, x.size // max(1, extent), lines, "shared", x.dtype)
    return build.reshape(build.add(problem, x, places)[0], (*shape, *x.shape[axes:]))


def rows_at(build: Build, x: Tensor, places: Tensor) -> Tensor:
    """Return rows of x (batch, rows, columns) by their places (batch, count)."""
    batch, rows, columns = x.shape
    problem = GatherProblem(batch, rows, columns, places.shape[1], "rows", x.dtype)
    return build.reshape(build.add(problem, x, places)[0], (batch, places.shape[1], columns))


def rows_to(build: Build, x: Tensor, places: Tensor, rows: int) -> Tensor:
    """Return an array of 0 whose rows at some places (batch, count) are those of x (batch, count, columns), added."""
    batch, count, columns = x.shape
    problem = ScatterProblem(batch, rows, columns, count, "rows", x.dtype, "add", onto_zero=True)
    return build.reshape(build.add(problem, places, x)[0], (batch, rows, columns))
