"""Gather and scatter in float64 with NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

COMBINE: dict[str, Callable[[Any, Any], Any]] = {
    "set": lambda old, new: new,
    "add": lambda old, new: old + new,
    "mul": lambda old, new: old * new,
    "max": np.maximum,
    "min": np.minimum,
}


def places(problem: Any, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the place on the axis for each (outer, count, inner), and whether it lies on the axis."""
    shape = {"shared": (1, -1, 1), "rows": (problem.outer, -1, 1)}.get(problem.sharing, problem.shapes[2])
    index = np.asarray(index).astype(np.int64)
    wide = np.broadcast_to(index.reshape(shape) if index.size else index.reshape(problem.shapes[2]), problem.shapes[2])
    at = np.where(wide < 0, wide + problem.extent, wide)
    return at, (at >= 0) & (at < problem.extent)


def gather(problem: Any, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """Compute a gather from its definition."""
    x = np.asarray(arrays["x"], np.float64)
    at, inside = places(problem, arrays["index"])
    if not problem.extent:
        return np.full(problem.shapes[2], np.nan)
    return np.where(inside, np.take_along_axis(x, np.where(inside, at, 0), 1), np.nan)


def scatter(problem: Any, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """Compute a scatter from its definition, index by index."""
    y = np.zeros(problem.shapes[0]) if problem.onto_zero else np.array(arrays["x"], np.float64)
    at, inside = places(problem, arrays["index"])
    updates = np.asarray(arrays["updates"], np.float64)
    combine = COMBINE[problem.operator]
    outer, inner = np.ogrid[: problem.outer, : problem.inner]
    for j in range(problem.count):
        good = inside[:, j]
        where = np.where(good, at[:, j], 0)
        if problem.extent:
            old = y[outer, where, inner]
            y[outer, where, inner] = np.where(good, combine(old, updates[:, j]), old)
    return y
