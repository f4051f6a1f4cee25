"""Initial values of learnable blobs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from clgraft.core.errors import ProblemError

KNOWN = ("constant", "uniform", "gaussian", "positive_unitball", "xavier", "msra", "bilinear")


def check(shape: tuple, filler: Any) -> None:
    """Raise `ProblemError` if a filler's type is unknown or does not fit a blob's shape."""
    if filler.type not in KNOWN:
        raise ProblemError(f"[filler] got type {filler.type!r}, expected one of {KNOWN}")
    if filler.type == "bilinear" and (len(shape) != 4 or shape[2] != shape[3]):
        raise ProblemError(f"[filler] got type 'bilinear' for shape {shape}, expected 4 axes, the last two alike")


def fill(shape: tuple, filler: Any, drawn: Callable[[tuple, Any], np.ndarray]) -> np.ndarray:
    """Return the initial values of a blob.

    Parameters
    ----------
    shape : tuple of int
        Shape of the blob.
    filler : FillerParameter
        What the native layer's parameters ask for: ``constant`` (the default), ``uniform``, ``gaussian`` (``sparse``
        too), ``positive_unitball``, ``xavier``, ``msra`` (each with ``variance_norm``), ``bilinear``.
    drawn : callable
        Returns what Caffe's own filler makes of a shape and a FillerParameter.

    Returns
    -------
    numpy.ndarray
        float32 values, the same as a native layer would get at this point of Caffe's random numbers.

    Raises
    ------
    ProblemError
        If the type is unknown or does not fit the shape.
    """
    check(shape, filler)
    if filler.type == "constant":
        return np.full(shape, filler.value, np.float32)
    return drawn(shape, filler)


def given_or(parameters: Any, name: str, value: float) -> Any:
    """Return the filler that a layer's parameters hold under a name, or a constant one if they hold none."""
    filler = getattr(parameters, name)
    if parameters.HasField(name):
        return filler
    constant = type(filler)()
    constant.value = value
    return constant
