"""Stand-ins for blobs and arrays while layers record themselves: they have shapes and addresses, but no memory."""

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


class Stand:
    """Stands for a blob: `data` and, while gradients are recorded, `diff`."""

    def __init__(self, data: Any, diff: Any | None = None) -> None:
        self.data, self.diff = data, diff


def buffer(array: Any, mode: int = core.OVERWRITE) -> core.Buffer:
    """Return the buffer of an array's memory, as plans take it."""
    if type(array) is Memory:
        return array.buffer(mode)
    dtype = "float32" if array.dtype.kind == "f" else str(array.dtype)  # blobs of Caffe's are float32
    return core.Buffer(array.__array_interface__["data"][0], array.nbytes, dtype, mode)
