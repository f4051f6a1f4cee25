"""Max pooling over windows of adapted sizes, window by window, for the tests of every adapter."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np


def adapted(x: np.ndarray, sizes: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Compute the maxima of windows of adapted sizes and their places, window by window."""
    y, index = np.zeros((*x.shape[:2], *sizes)), np.zeros((*x.shape[:2], *sizes), int)
    plane = np.arange(math.prod(x.shape[2:])).reshape(x.shape[2:])
    for place in itertools.product(*map(range, sizes)):
        box = tuple(slice(i * n // o, -(-(i + 1) * n // o)) for i, n, o in zip(place, x.shape[2:], sizes))
        inside = x[(..., *box)].reshape(*x.shape[:2], -1)
        y[(..., *place)], index[(..., *place)] = inside.max(2), plane[box].reshape(-1)[inside.argmax(2)]
    return y, index
