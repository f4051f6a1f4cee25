"""Stand-ins for arrays while layers describe themselves: they have shapes and addresses, but no memory."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from clgraft import core
from clgraft.core import abi

SKIPPED = core.Buffer(0, 0, "float32", core.SKIP)
_addresses = itertools.count(1 << 62, 1 << 12)  # where no real memory lies


class Memory:
    """Stands for an array, of float32 by default."""

    def __init__(self, shape: tuple, dtype: Any = np.float32) -> None:
        self.shape, self.size, self.dtype = tuple(shape), math.prod(shape), np.dtype(dtype).name
        self.nbytes = self.size * np.dtype(dtype).itemsize
        self.address = next(_addresses)

    def buffer(self, mode: int) -> core.Buffer:
        """Return the buffer that plans take."""
        return core.Buffer(self.address, self.nbytes, self.dtype, mode)


def buffer(array: Any, mode: int = core.OVERWRITE, dtype: str = "float32") -> core.Buffer:
    """Return the buffer of an array's memory, as plans take it."""
    if type(array) is Memory:
        return array.buffer(mode)
    return core.Buffer(array.__array_interface__["data"][0], array.nbytes, dtype, mode)


def filled(array: Any, dtype: str) -> core.Buffer:
    """Return the buffer of an array in host memory, or in that of the device."""
    if not hasattr(array, "base_data"):
        return buffer(array, core.OVERWRITE, dtype)
    handle = array.base_data.int_ptr if array.base_data is not None else 0
    return core.Buffer(handle, array.nbytes, dtype, core.OVERWRITE, abi.lib.CLG_DEVICE, array.offset)
