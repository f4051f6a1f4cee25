"""Stand-ins for arrays while layers describe themselves: they have shapes and addresses, but no memory."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from clgraft import core

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


def buffer(array: Any, mode: int = core.OVERWRITE) -> core.Buffer:
    """Return the buffer of an array's memory, as plans take it."""
    if type(array) is Memory:
        return array.buffer(mode)
    dtype = "float32" if array.dtype.kind == "f" else str(array.dtype)  # blobs of Caffe's are float32
    return core.Buffer(array.__array_interface__["data"][0], array.nbytes, dtype, mode)
