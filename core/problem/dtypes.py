"""Types of real numbers: their words in a problem's text, and what rounding to them costs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from clgraft.core.errors import ProblemError

DTYPE_WORDS = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "f64": "float64"}
DTYPES = tuple(DTYPE_WORDS.values())
SMALL = ("float16", "bfloat16")  # formats of memory: arithmetic on them is in float32
ROUNDING = {
    "float32": 2.0**-24,
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
    "float64": 2.0**-53,
}  # largest relative error


def in_float64(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return arrays in the type that references compute in; those that have it already are not copied."""
    return {name: np.asarray(array, np.float64) for name, array in arrays.items()}


def in_numpy(dtype: str) -> bool:
    """Return whether NumPy has a type; bfloat16 needs the package ml_dtypes."""
    try:
        expect_in_numpy("", dtype)
    except ProblemError:
        return False
    return True


def expect_in_numpy(kind: str, dtype: str) -> None:
    """Make NumPy know a type: bfloat16 is that of the package ml_dtypes.

    Raises
    ------
    ProblemError
        If that package is not installed.
    """
    if dtype != "bfloat16":
        return
    try:
        import ml_dtypes  # noqa: F401  it registers its types
    except ImportError as error:
        raise ProblemError(
            f"[{kind}] got dtype bfloat16, expected the package ml_dtypes to be installed, "
            f"which gives NumPy this type ({error})"
        ) from None
