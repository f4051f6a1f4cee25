"""Deconvolution in float64 with NumPy: the definition of the convolution that it transposes, its roles exchanged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from clgraft.core.operators.conv.reference import convolve


def deconvolve(problem: Any, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """Compute a deconvolution problem's result from its definition.

    Parameters
    ----------
    problem : DeconvProblem
        In any direction.
    arrays : mapping of str to numpy.ndarray
        The inputs by name, float64, of the problem's shapes.
    """
    transposed = problem.convolution
    if problem.direction == "backward_bias":
        return convolve(transposed, arrays)
    names = {argument.name: problem.roles.get(argument.name, argument.name) for argument in transposed.arguments()[:-1]}
    found = convolve(transposed, {name: arrays[own] for name, own in names.items()})
    return found + arrays["b"].reshape(-1, *(1,) * problem.ndim) if "b" in arrays else found
