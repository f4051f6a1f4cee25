"""Memory of tensors that regions make: blocks that are used again, and values that stay on the device."""

from __future__ import annotations

import math
import threading
import weakref
from collections import deque
from typing import Any

import numpy as np
import torch

ALIGNMENT = 4096  # bytes: a page
SMALLEST = 1 << 16  # bytes of tensors whose memory is kept; the others are PyTorch's


class _Owner(np.ndarray):
    """What a tensor's storage holds as long as it lives; `value` is the held device array, if there is one."""

    value: Any = None


class Blocks:
    """Memory for tensors, which comes back when a tensor's storage is freed: new pages cost as much as computing them.

    At most as many bytes are kept without a tensor as all tensors ever had at once. Safe to use from any thread.
    """

    def __init__(self) -> None:
        self._idle: list[np.ndarray] = []  # the oldest first
        self._returned: deque[np.ndarray] = deque()  # finalizers add to it, at any time and without a lock
        self._lock = threading.Lock()
        self._unused = self._used = self._most = 0  # bytes: without a tensor, with one, and the most that had one

    @property
    def unused(self) -> int:
        """Bytes that are kept without a tensor."""
        with self._lock:
            self._take_back()
            return self._unused

    def empty(self, shape: tuple[int, ...], dtype: str) -> torch.Tensor:
        """Return a tensor whose elements are undefined."""
        nbytes = math.prod(shape) * np.dtype(dtype).itemsize
        if nbytes < SMALLEST:
            return torch.empty(shape, dtype=getattr(torch, dtype))
        block = self._take(nbytes)
        owner = block.view(dtype).reshape(shape).view(_Owner)
        weakref.finalize(owner, self._returned.append, block).atexit = False
        return torch.from_numpy(owner)

    def _take(self, nbytes: int) -> np.ndarray:
        with self._lock:
            self._take_back()
            self._used += nbytes
            self._most = max(self._most, self._used)
            for place in range(len(self._idle) - 1, -1, -1):  # the last one used is in the cache
                if self._idle[place].nbytes == nbytes:
                    self._unused -= nbytes
                    return self._idle.pop(place)
        whole = np.empty(nbytes + ALIGNMENT, np.uint8)
        begin = -whole.ctypes.data % ALIGNMENT
        return whole[begin : begin + nbytes]

    def _take_back(self) -> None:
        """Note blocks whose tensors are gone, and free the oldest where that is too much."""
        while self._returned:
            block = self._returned.popleft()
            self._idle.append(block)
            self._used -= block.nbytes
            self._unused += block.nbytes
        while self._unused > self._most:
            self._unused -= self._idle.pop(0).nbytes


BLOCKS = Blocks()
_HELD: weakref.WeakValueDictionary[int, _Owner] = weakref.WeakValueDictionary()  # by address


def hold(value: Any, shape: tuple[int, ...]) -> torch.Tensor:
    """Return a tensor that stands for a device array of this shape: one NaN, seen as often as the shape wants."""
    owner = np.full(1, np.nan, value.dtype).view(_Owner)
    owner.value = value
    _HELD[owner.ctypes.data] = owner
    return torch.from_numpy(owner).expand(shape)


def held(tensor: Any) -> Any:
    """Return the device array that a tensor stands for; None if it has its elements itself."""
    if not _HELD or not isinstance(tensor, torch.Tensor):
        return None
    owner = _HELD.get(tensor.data_ptr())
    return None if owner is None else owner.value.reshape(tensor.shape)


def fetch(tensor: Any) -> Any:
    """Return a tensor with its elements in host memory."""
    value = held(tensor)
    return tensor if value is None else torch.from_numpy(value.get())


def saved_elsewhere() -> bool:
    """Return whether hooks take what backward reads: they have to see its elements."""
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    return top is not None and top(False) is not None
