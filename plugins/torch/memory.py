"""Memory of tensors that regions make in host memory: blocks that are used again."""

from __future__ import annotations

import math
import threading
import weakref
from collections import deque

import numpy as np
import torch

from clgraft.core.runtime.arrays import aligned

PAGE = 4096  # bytes
SMALLEST = 1 << 16  # bytes of tensors whose memory is kept; the others are PyTorch's


def tensor_of(array: np.ndarray) -> torch.Tensor:
    """Return a tensor in the memory of an array, of bfloat16 too, which PyTorch does not take from NumPy."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def array_of(tensor: torch.Tensor) -> np.ndarray:
    """Return an array in the memory of a tensor of the host."""
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view("bfloat16")
    found: np.ndarray = tensor.numpy()
    return found


class _Owner(np.ndarray):
    """What a tensor's storage holds as long as it lives."""


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
        own = getattr(torch, dtype)
        nbytes = math.prod(shape) * own.itemsize
        if nbytes < SMALLEST:
            return torch.empty(shape, dtype=own)
        block = self._take(nbytes)
        owner = block.view(dtype).reshape(shape).view(_Owner)
        weakref.finalize(owner, self._returned.append, block).atexit = False
        return tensor_of(owner)

    def _take(self, nbytes: int) -> np.ndarray:
        with self._lock:
            self._take_back()
            self._used += nbytes
            self._most = max(self._most, self._used)
            for place in range(len(self._idle) - 1, -1, -1):  # the last one used is in the cache
                if self._idle[place].nbytes == nbytes:
                    self._unused -= nbytes
                    return self._idle.pop(place)
        return aligned(nbytes, PAGE)

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
