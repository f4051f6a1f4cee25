"""Interpolation in float64 with NumPy: a matrix of weights per axis, and its transpose for the gradient."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from math import ceil, floor
from typing import Any

import numpy as np


def interpolate(problem: Any, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """Compute an interpolation problem's result from its definition.

    Parameters
    ----------
    problem : InterpolationProblem
        In any direction.
    arrays : mapping of str to numpy.ndarray
        The inputs by name, float64, of the problem's shapes.
    """
    forward = problem.direction == "forward"
    values = arrays["x" if forward else "dy"]
    for axis, (size, count) in enumerate(zip(problem.in_size, problem.out_size), 2):
        matrix = weights(problem, size, count)
        values = np.moveaxis(np.tensordot(values, matrix, ((axis,), (1 if forward else 0,))), -1, axis)
    return np.ascontiguousarray(values)


def place(coordinates: str, output: int, size: int, count: int) -> Fraction:
    """Return where an output of an axis lies among its inputs, exactly."""
    if coordinates == "asymmetric":
        return Fraction(output * size, count)
    if count == 1 and coordinates != "half_pixel":
        return Fraction(0)
    if coordinates == "align_corners":
        return Fraction(output * (size - 1), count - 1)
    return (output + Fraction(1, 2)) * Fraction(size, count) - Fraction(1, 2)


def weights(problem: Any, size: int, count: int) -> np.ndarray:
    """Return the weights of an axis: (outputs, inputs)."""
    rounded = {
        "prefer_floor": lambda at: ceil(at - Fraction(1, 2)),
        "prefer_ceil": lambda at: floor(at + Fraction(1, 2)),
        "floor": floor,
        "ceil": ceil,
    }[problem.rounding]
    matrix = np.zeros((count, size))
    for output in range(count):
        at = place(problem.coordinates, output, size, count)
        if problem.method == "nearest":
            matrix[output, min(max(rounded(at), 0), size - 1)] = 1
            continue
        at = min(max(at, Fraction(0)), Fraction(size - 1))
        lower = floor(at)
        matrix[output, lower] += float(1 - (at - lower))
        if at > lower:
            matrix[output, lower + 1] += float(at - lower)
    return matrix
