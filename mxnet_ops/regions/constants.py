"""What was read of a frozen region's parameters: constants of its programs, of whatever shapes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from clgraft import core
from clgraft.mxnet_ops.regions.held import Held, held_as


class Constants(Held):
    """The parameters of a frozen region as they were read.

    Parameters
    ----------
    arrays : mapping of str to numpy array
        By their names in the region.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        super().__init__({name: array.shape for name, array in arrays.items()})
        self.arrays = dict(arrays)
        self._sent: dict[core.Context, Mapping[str, Any]] = {}

    def on(self, context: core.Context) -> Mapping[str, Any]:
        """Return the arrays where the device reads them: all programs share what was sent to it."""
        if context.device.host_access != "staged":
            return self.arrays
        import pyopencl.array as device_array

        with self._lock:
            if context not in self._sent:
                self._sent[context] = {n: device_array.to_device(context.queue, a) for n, a in self.arrays.items()}
            return self._sent[context]


def constants_of(number: int) -> Constants:
    """Return the constants of a number.

    Raises
    ------
    core.ProblemError
        If they are gone, or of another process.
    """
    return held_as(Constants, number, "constants")
