"""Softmax and its gradient in float64 with NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


def softmax(problem: Any, arrays: Mapping[str, np.ndarray], scale: float) -> np.ndarray:
    """Compute a softmax problem's result from its definition.

    Parameters
    ----------
    problem : SoftmaxProblem
    arrays : mapping of str to numpy.ndarray
        The inputs by name, float64, of the problem's shapes.
    scale : float
        The problem's scalar.
    """
    if problem.direction == "forward":
        with np.errstate(invalid="ignore"):
            shifted = scale * arrays["x"]
            shifted = shifted - shifted.max(1, keepdims=True, initial=-np.inf)
            total = np.exp(shifted).sum(1, keepdims=True)
            return shifted - np.log(total) if problem.log else np.exp(shifted) / total
    y, dy = arrays["y"], arrays["dy"]
    if problem.log:
        return scale * (dy - np.exp(y) * dy.sum(1, keepdims=True))
    return scale * y * (dy - (y * dy).sum(1, keepdims=True))
