"""Values that stay on the device: tensors of the right shape stand for them and have no elements of their own."""

from __future__ import annotations

import math
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from clgraft.core import Context, ExecutionError
from clgraft.core.problem import round_up
from clgraft.plugins.torch.memory import array_of, tensor_of

PAGE = 1 << 13  # bytes of the memory of tensors that stand for values; their addresses name it
ALIGNMENT = 256  # bytes of a value on the device


class Arrays:
    """Memory of a device for the values that a run leaves there. It comes back when the last tensor is gone.

    At most as many bytes are kept without a tensor as all tensors ever had at once. Safe to use from any thread.

    Parameters
    ----------
    context : Context
    """

    def __init__(self, context: Context) -> None:
        self._lifetime = context.lifetime
        self._handle, self._lib, self._ffi = context.handle, context.lib, context.ffi
        self._idle: list[tuple[int, Any]] = []  # bytes and the C runtime's handle, the oldest first
        self._returned: deque[tuple[int, Any]] = deque()  # finalizers add to it, at any time and without a lock
        self._lock = threading.Lock()
        self._unused = self._used = self._most = 0

    @property
    def unused(self) -> int:
        """Bytes that are kept without a tensor."""
        with self._lock:
            self._take_back()
            return self._unused

    def take(self, nbytes: int) -> Lease:
        """Return memory of so many bytes.

        Raises
        ------
        ExecutionError
            With the status CLG_OUT_OF_MEMORY if the device has no room.
        """
        with self._lock:
            self._take_back()
            for place in range(len(self._idle) - 1, -1, -1):
                if self._idle[place][0] == nbytes:
                    kept = self._idle.pop(place)
                    self._unused -= nbytes
                    break
            else:
                kept = nbytes, self._create(nbytes)
            self._used += nbytes
            self._most = max(self._most, self._used)
        lease = Lease(self, kept[1])
        weakref.finalize(lease, self._returned.append, kept).atexit = False
        return lease

    def release(self) -> None:
        """Free what no tensor uses."""
        with self._lock:
            self._take_back()
            self._free(0)

    def read(self, lease: Lease, offset: int, array: np.ndarray) -> None:
        """Fill an array with what lies on the device."""
        pointer = self._ffi.cast("void *", array.ctypes.data)
        self._check(self._lib.clg_array_read(lease.handle, offset, pointer, array.nbytes))

    def _create(self, nbytes: int) -> Any:
        out = self._ffi.new("clg_array *")
        status = self._lib.clg_array_create(self._handle, nbytes, out)
        if status == self._lib.CLG_OUT_OF_MEMORY and self._idle:
            self._free(0)
            status = self._lib.clg_array_create(self._handle, nbytes, out)
        self._check(status)
        return out[0]

    def _take_back(self) -> None:
        while self._returned:
            kept = self._returned.popleft()
            self._idle.append(kept)
            self._used -= kept[0]
            self._unused += kept[0]
        self._free(self._most)

    def _free(self, most: int) -> None:
        while self._unused > most:
            nbytes, handle = self._idle.pop(0)
            self._unused -= nbytes
            self._lib.clg_array_destroy(handle)

    def _check(self, status: int) -> None:
        if status:
            raise ExecutionError(self._ffi.string(self._lib.clg_last_error()).decode(), status)


_OF_CONTEXTS: weakref.WeakKeyDictionary[Context, Arrays] = weakref.WeakKeyDictionary()


def arrays_of(context: Context) -> Arrays:
    """Return the memory of a context's device."""
    found = _OF_CONTEXTS.get(context)
    if found is None:
        found = _OF_CONTEXTS.setdefault(context, Arrays(context))
    return found


class Lease:
    """Memory of a device as long as this object lives."""

    def __init__(self, arrays: Arrays, handle: Any) -> None:
        self.arrays, self.handle = arrays, handle
        self.address = int(arrays._ffi.cast("uintptr_t", handle))


class _Page(np.ndarray):
    """What tensors hold that stand for values: one NaN each, in a page of its own."""

    lease: Lease
    offsets: Sequence[int]


@dataclass(frozen=True)
class Held:
    """A value on the device: memory, and where in it the value begins, in bytes."""

    lease: Lease
    offset: int


_HELD: weakref.WeakValueDictionary[int, _Page] = weakref.WeakValueDictionary()  # by address


class Layout:
    """Where the values that a run leaves on the device lie in one piece of memory.

    Parameters
    ----------
    values : sequence of (shape, dtype)
    """

    def __init__(self, values: Sequence[tuple[tuple[int, ...], str]]) -> None:
        self.offsets: list[int] = []
        self.nbytes = 0
        self._pages: dict[str, list[list[int]]] = {}  # dtype -> pages -> values
        for number, (shape, dtype) in enumerate(values):
            itemsize = np.dtype(dtype).itemsize
            self.offsets.append(self.nbytes)
            self.nbytes += round_up(max(1, math.prod(shape)) * itemsize, ALIGNMENT)
            pages = self._pages.setdefault(dtype, [[]])
            if len(pages[-1]) == PAGE // itemsize:
                pages.append([])
            pages[-1].append(number)

    def hold(self, lease: Lease, shapes: Sequence[tuple[int, ...]]) -> list[torch.Tensor]:
        """Return tensors that stand for the values: each is one NaN, seen as often as its shape wants."""
        tensors: list[Any] = [None] * len(self.offsets)
        for dtype, pages in self._pages.items():
            for numbers in pages:
                page = _page(dtype)
                page.lease, page.offsets = lease, [self.offsets[number] for number in numbers]
                base = tensor_of(page)
                for place, number in enumerate(numbers):
                    tensors[number] = base.as_strided(shapes[number], (0,) * len(shapes[number]), place)
        return tensors


def _page(dtype: str) -> _Page:
    memory = np.empty(2 * PAGE, np.uint8)
    begin = -memory.ctypes.data % PAGE
    page = memory[begin : begin + PAGE].view(dtype).view(_Page)
    page.fill(np.nan)
    _HELD[page.ctypes.data // PAGE] = page
    return page


def held(tensor: Any) -> Held | None:
    """Return the value that a tensor stands for; None if it has its elements itself."""
    if not isinstance(tensor, torch.Tensor):
        return None
    address = tensor.data_ptr()
    page = _HELD.get(address // PAGE)
    return None if page is None else Held(page.lease, page.offsets[address % PAGE // page.itemsize])


def fetch(tensor: Any) -> Any:
    """Return a tensor with its elements in host memory."""
    value = held(tensor)
    if value is None:
        return tensor
    found = torch.empty(tensor.shape, dtype=tensor.dtype)
    value.lease.arrays.read(value.lease, value.offset, array_of(found))
    return found


def saved_elsewhere() -> bool:
    """Return whether hooks take what backward reads: they have to see its elements."""
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    return top is not None and top(False) is not None
