"""Problems that move elements, with NumPy's own functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


def concatenate(problem: Any, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Compute a concat problem's results."""
    whole, parts = problem.names
    if problem.direction == "forward":
        return {whole: np.concatenate([arrays[name] for name in parts], axis=1)}
    ends = np.cumsum(problem.extents)[:-1]
    return dict(zip(parts, np.split(arrays[whole], ends, axis=1)))


def slice_box(problem: Any, arrays: Mapping[str, np.ndarray], value: float) -> dict[str, np.ndarray]:
    """Compute a slice problem's result; `value` surrounds the box."""
    index = np.ix_(*(b + s * np.arange(o) for b, s, o in zip(problem.begin, problem.step, problem.out_shape)))
    if problem.direction == "forward":
        return {"y": arrays["x"][index]}
    dx = np.full(problem.in_shape, value)
    dx[index] = arrays["dy"]
    return {"dx": dx}


def pad(problem: Any, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Compute a pad problem's result; the gradient adds up where the elements of y come from."""
    widths = list(zip(problem.before, problem.behind))
    if problem.direction == "forward":
        return {"y": np.pad(arrays["x"], widths, mode=problem.mode)}
    source = np.pad(np.arange(np.prod(problem.shape, dtype=int)).reshape(problem.shape), widths, mode=problem.mode)
    dx = np.zeros(source.max(initial=-1) + 1)
    np.add.at(dx, source.ravel(), arrays["dy"].ravel())
    return {"dx": dx.reshape(problem.shape)}


def transpose(problem: Any, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Compute a transpose problem's result."""
    return {"y": np.ascontiguousarray(arrays["x"].transpose(problem.axes))}


def repeat(problem: Any, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Compute a repeat problem's result."""
    y = arrays["x"]
    if problem.whole:
        return {"y": np.tile(y, problem.times)}
    for axis, times in enumerate(problem.times):
        y = y.repeat(times, axis)
    return {"y": y}
