"""Images at given places in float64 with NumPy."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

KEYS = -0.75


def grid_sample(problem: Any, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """Compute sampled images from the definition, tap by tap."""
    x, grid = (np.asarray(arrays[name], np.float64) for name in ("x", "grid"))
    places = []
    for axis, size in enumerate(problem.in_size):
        g = grid[..., problem.ndim - 1 - axis].reshape(problem.batch, math.prod(problem.out_size))
        at = (g + 1) / 2 * (size - 1) if problem.align_corners else ((g + 1) * size - 1) / 2
        if problem.method != "cubic":
            at = _moved(problem, at, size)
        places.append(at)
    total = np.zeros((problem.batch, problem.channels, places[0].shape[1]))
    taps = {"nearest": (0,), "linear": (0, 1), "cubic": (-1, 0, 1, 2)}[problem.method]
    for tap in itertools.product(taps, repeat=problem.ndim):
        weight, inside = np.ones_like(places[0]), np.ones(places[0].shape, bool)
        index: list[np.ndarray] = []
        for offset, at, size in zip(tap, places, problem.in_size):
            low = np.rint(at) if problem.method == "nearest" else np.floor(at)
            weight = weight * _weight(problem.method, np.abs(low + offset - at))
            place = low + offset
            if problem.method == "cubic":
                place = np.rint(_moved(problem, place, size))
            inside = inside & (place >= 0) & (place < size)
            index.append(np.clip(place, 0, size - 1).astype(int))
        rows = np.arange(problem.batch)[:, None]
        places_of: tuple[Any, ...] = (rows, slice(None), *index)
        pixels = np.moveaxis(x[places_of], -1, 1) if problem.batch else total
        total = total + np.where(inside & (weight != 0), weight, 0)[:, None] * pixels
    return total.reshape(problem.batch, problem.channels, *problem.out_size)


def _weight(method: str, d: np.ndarray) -> np.ndarray:
    if method == "nearest":
        return np.ones_like(d)
    if method == "linear":
        return np.clip(1 - d, 0, None)
    near = ((KEYS + 2) * d - (KEYS + 3)) * d * d + 1
    return np.where(d <= 1, near, np.where(d < 2, ((KEYS * d - 5 * KEYS) * d + 8 * KEYS) * d - 4 * KEYS, 0))


def _moved(problem: Any, at: np.ndarray, size: int) -> np.ndarray:
    """Return places with those outside moved into the image, where the padding says so."""
    if problem.padding == "border":
        return np.clip(at, 0, size - 1)
    if problem.padding == "reflection":
        low, span = (0.0, size - 1.0) if problem.align_corners else (-0.5, float(size))
        if span == 0:
            return np.zeros_like(at)
        off = np.mod(at - low, 2 * span)
        return np.clip(low + np.where(off > span, 2 * span - off, off), 0, size - 1)
    return at
