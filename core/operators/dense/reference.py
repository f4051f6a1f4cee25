"""Dense layers in float64 with NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


def multiply(problem: Any, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """Compute a dense problem's result from its definition.

    Parameters
    ----------
    problem : DenseProblem
        In any direction.
    arrays : mapping of str to numpy.ndarray
        The inputs by name, float64, of the problem's shapes.
    """
    if problem.direction == "backward_bias":
        return arrays["dy"].sum(axis=0)
    if problem.direction == "backward_weight":
        x, dy = arrays["x"], arrays["dy"]
        return x.T @ dy if problem.transposed else dy.T @ x
    w = arrays["w"].T if problem.transposed else arrays["w"]  # (outputs, inputs)
    if problem.direction == "backward_data":
        return arrays["dy"] @ w
    y = arrays["x"] @ w.T
    return y + arrays["b"] if "b" in arrays else y
