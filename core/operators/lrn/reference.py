"""Local response normalisation and its gradient in float64 with NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


def normalize(problem: Any, arrays: Mapping[str, np.ndarray], alpha: float, k: float) -> np.ndarray:
    """Compute an LRN problem's result from its definition.

    Parameters
    ----------
    problem : LRNProblem
    arrays : mapping of str to numpy.ndarray
        The inputs by name, float64, of the problem's shapes.
    alpha, k : float
        The problem's scalars.
    """

    def window_sums(values: np.ndarray) -> np.ndarray:
        half, sums = problem.size // 2, np.zeros_like(values)
        padded = np.pad(values, ((0, 0), (half, half), (0, 0)))
        for offset in range(problem.size):
            sums += padded[:, offset : offset + values.shape[1]]
        return sums

    x, share, beta = arrays["x"], alpha / problem.size, problem.beta
    level = k + share * window_sums(x * x)
    if problem.direction == "forward":
        return x * level**-beta
    dy = arrays["dy"]
    return dy * level**-beta - 2 * share * beta * x * window_sums(dy * x * level ** (-beta - 1))
