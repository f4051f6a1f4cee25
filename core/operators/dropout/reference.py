"""The random numbers of `DropoutProblem` in NumPy: what every device is checked against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

WORD = np.uint64(0xFFFFFFFF)
HALF = np.uint64(32)


def philox(counter: Sequence[Any], key: Sequence[int]) -> list[np.ndarray]:
    """Return the four words of Philox 4x32-10 (Salmon et al. 2011, figure 2).

    Parameters
    ----------
    counter : four words or arrays of words
    key : two words

    Returns
    -------
    list of four numpy arrays
        uint64, each below 2^32.
    """
    c = [np.asarray(word, np.uint64) for word in counter]
    k = [np.uint64(word) for word in key]
    for _ in range(10):
        p, q = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [(q >> HALF) ^ c[1] ^ k[0], q & WORD, (p >> HALF) ^ c[3] ^ k[1], p & WORD]
        k = [(k[0] + np.uint64(0x9E3779B9)) & WORD, (k[1] + np.uint64(0xBB67AE85)) & WORD]
    return c


def uniform(count: int, key: Sequence[int]) -> np.ndarray:
    """Return the numbers that `count` elements get under a key of four words: float64 in [0, 1), of 24 bits."""
    words = [int(word) % 2**32 for word in key]
    place = np.arange(count, dtype=np.uint64)
    counter = place // np.uint64(64) * np.uint64(16) + place % np.uint64(16)
    found = philox((counter & WORD, counter >> HALF, words[2], words[3]), words[:2])
    which = (place // np.uint64(16) % np.uint64(4)).astype(int)
    return (np.stack(found)[which, np.arange(count)] >> np.uint64(8)) * 2.0**-24


def apply_random(problem: Any, arrays: Mapping[str, np.ndarray], scalars: Mapping[str, float]) -> np.ndarray:
    """Compute a dropout problem's result from its definition.

    Parameters
    ----------
    problem : DropoutProblem
    arrays : mapping of str to numpy.ndarray
        The inputs by name, of the problem's shapes.
    scalars : mapping of str to float
        All of the problem's; compared as the kernels have them, in float32 unless the problem is of float64.
    """
    real = np.float64 if problem.dtype == "float64" else np.float32
    values = {name: np.asarray(array, np.float64) for name, array in arrays.items() if name != "key"}
    drawn = uniform(int(np.prod(problem.mask, dtype=int)), [int(word) for word in arrays["key"]]).reshape(problem.mask)
    if problem.operator == "dropout":
        factor = np.where(drawn < real(scalars["keep"]), float(real(scalars["scale"])), 0.0)
    else:
        low, high = float(real(scalars["low"])), float(real(scalars["high"]))
        factor = np.where(values["x"] > 0, 1.0, low + (high - low) * drawn)
    return values["x" if problem.direction == "forward" else "dy"] * factor
