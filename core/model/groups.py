"""Processes that train one model together."""

from __future__ import annotations

from typing import Protocol

import numpy as np


class Group(Protocol):
    """Processes that run the same steps, each on its own part of a batch.

    Attributes
    ----------
    rank : int
        The number of this process, from 0.
    size : int
        How many there are.
    """

    rank: int
    size: int

    def sum(self, array: np.ndarray) -> None:
        """Replace an array by the sum of those of all processes."""

    def broadcast(self, array: np.ndarray) -> None:
        """Replace an array by that of the first process."""
