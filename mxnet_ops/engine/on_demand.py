"""What arrays of MXNet share whose elements come to the host when somebody asks for them."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from mxnet.base import _LIB, check_call
from mxnet.ndarray.ndarray import NDArray

DESCRIBING = ("shape", "size", "ndim", "dtype", "stype", "context", "ctx")  # attributes that need no elements


class AsNDArray(type):
    """The type of a class that equals `NDArray`: MXNet compares the types of arrays."""

    def __eq__(cls, other: Any) -> bool:
        return other is cls or other is NDArray

    def __hash__(cls) -> int:
        return type.__hash__(cls)


def fill(array: NDArray, elements: np.ndarray) -> None:
    """Overwrite an array's elements, after those who read it."""
    array.wait_to_read()
    # MXNet's inference leaves weights in layouts of oneDNN, and a copy into those fails
    check_call(_LIB.MXNDArrayGetData(array.handle, ctypes.byref(ctypes.c_void_p())))
    address = elements.ctypes.data_as(ctypes.c_void_p)
    check_call(_LIB.MXNDArraySyncCopyFromCPU(array.handle, address, ctypes.c_size_t(elements.size)))
