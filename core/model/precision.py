"""The types in which the numbers of models travel."""

from __future__ import annotations

from typing import Any

import numpy as np

from clgraft.core.model.errors import ModelError

PRECISIONS = ("float32", "float16", "bfloat16", "float64")
EXACT = {"float16": 2**11, "float32": 2**24, "float64": 2**53}  # up to here whole numbers are exact


def expect_precision(kind: str, precision: str | None) -> None:
    """Check the name of a precision.

    Raises
    ------
    ModelError
        If it is none of `PRECISIONS`.
    """
    if precision is not None and precision not in PRECISIONS:
        raise ModelError(f"[{kind}] got precision {precision!r}, expected one of {PRECISIONS}")


def carried(kind: str, name: str, array: Any, dtype: str) -> np.ndarray:
    """Return an array in a type of real numbers.

    Parameters
    ----------
    kind, name : str
        What the model is, and what the array is in it; for errors.
    array : numpy.ndarray
        Of real or whole numbers, or truth values.
    dtype : str
        One of `PRECISIONS`. Real numbers are rounded to it.

    Raises
    ------
    ModelError
        If the type does not hold the numbers: a whole number that would be rounded, a real number that would become
        infinite, or elements that are no numbers.
    """
    found = np.asarray(array)
    if found.dtype == dtype:
        return np.ascontiguousarray(found).reshape(found.shape)
    if found.dtype.kind not in "fiub":
        raise ModelError(f"[{kind}] got {name} of type {found.dtype}, expected numbers")
    if found.dtype.kind in "iu" and found.size:
        low, high = int(found.min()), int(found.max())
        if max(-low, high) > EXACT[dtype]:
            raise ModelError(
                f"[{kind}] got {name} with whole numbers from {low} to {high}, expected at most {EXACT[dtype]}, which"
                f" {dtype} holds exactly"
            )
    with np.errstate(over="ignore"):
        made = np.ascontiguousarray(found, dtype).reshape(found.shape)
    narrower = found.dtype.kind == "f" and found.dtype.itemsize > made.dtype.itemsize
    if narrower and not np.array_equal(np.isfinite(found), np.isfinite(made)):
        raise ModelError(f"[{kind}] got {name} with numbers beyond {dtype}, expected smaller ones or another precision")
    return made
