"""Arrays where a device reads them without a transfer: in its own memory, or on the host where it uses that."""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from clgraft.core.errors import ExecutionError
from clgraft.core.problem import round_up

ALIGNMENT = 128  # bytes


def aligned(nbytes: int, alignment: int = ALIGNMENT) -> np.ndarray:
    """Return bytes of host memory that begin at a multiple of some number."""
    block = np.empty(nbytes + alignment, np.uint8)
    start = -block.ctypes.data % alignment
    return block[start : start + nbytes]


def in_one_block(sizes: Mapping[str, int], alignment: int = ALIGNMENT) -> dict[str, np.ndarray]:
    """Return host memory by name, of these numbers of bytes, as parts of one block.

    NumPy asks the system for huge pages for large arrays only, which a block of many small ones is.
    """
    block = aligned(sum(round_up(nbytes, alignment) for nbytes in sizes.values()), alignment)
    place, found = 0, {}
    for name, nbytes in sizes.items():
        found[name] = block[place : place + nbytes]
        place += round_up(nbytes, alignment)
    return found


def empty(context: Any, shape: Sequence[int], dtype: str) -> Any:
    """Return an array for a context's device; its elements are undefined."""
    if context.device.host_access == "staged":
        import pyopencl.array as device_array

        return device_array.empty(context.queue, tuple(shape), dtype)
    return aligned(math.prod(shape) * np.dtype(dtype).itemsize).view(dtype).reshape(shape)


def handle(ffi: Any, lib: Any, context: Any, nbytes: int, owner: Any) -> Any:
    """Return a ``clg_array`` of a context, given by its handle, which lives as long as its owner.

    Raises
    ------
    ExecutionError
        If the device has no room.
    """
    out = ffi.new("clg_array *")
    status = lib.clg_array_create(context, nbytes, out)
    if status:
        raise ExecutionError(ffi.string(lib.clg_last_error()).decode(), status)
    weakref.finalize(owner, lib.clg_array_destroy, out[0]).atexit = False
    return out[0]
