"""The largest rounding errors that sums of products may have."""

from __future__ import annotations

import numpy as np

STORAGE = {"float32": 2.0**-24, "float16": 2.0**-11, "float64": 2.0**-53}
ARITHMETIC = {"float32": 2.0**-24, "float16": 2.0**-24, "float64": 2.0**-53}


def hold_to_bound(
    what: str, result: np.ndarray, exact: np.ndarray, bound: np.ndarray, terms: int, dtype: str, stores: int = 1
) -> None:
    """Hold every element to Higham's bound of a sum of products, plus the rounding of what is stored.

    Parameters
    ----------
    exact, bound : numpy.ndarray
        The sum in float64, and the sum of its terms' magnitudes.
    terms : int
        How many products are summed at most.
    stores : int
        How often an element is stored until it is done: what is stored before the last time is no larger than `bound`.
    """
    summing = (terms + 2) * ARITHMETIC[dtype] * bound
    storing = 2 * STORAGE[dtype] * (np.abs(exact) + summing + (stores - 1) * bound)
    allowed = summing + storing + (2.0**-25 if dtype == "float16" else 0)
    error = np.abs(result.astype(np.float64) - exact)
    wrong = np.argwhere(~(error <= allowed))
    assert not len(wrong), f"{what}: {len(wrong)} of {error.size} elements wrong, first at {wrong[0]}"
