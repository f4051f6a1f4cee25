"""Brings arrays into MXNet's plain layout before operators of this package read or write them, without a copy.

MXNet's inference leaves weights in layouts of oneDNN, and its gradients too. An operation of MXNet's engine, queued in
front of a cached graph, writes the graph's inputs: it reorders the memory of those that have such a layout, and finds
nothing to do for others. A reordering by MXNet that was queued by an operator before it sees that the array was written
since, and is left out. What is recorded is read, and its gradients are written, by a backward, which gets such an
operation too.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import mxnet as mx
from mxnet.base import _LIB, check_call

from clgraft.mxnet_ops.engine.calls import REORDER, VERSIONS, ffi, lib

# backwards for which a recorded call's arrays are remembered: a recorded call may be one of several whose losses are
# propagated one after another, such as those of several devices
BACKWARDS = 64

AVAILABLE = mx.__version__ in VERSIONS and hasattr(_LIB, REORDER)

_lock = threading.Lock()


def make_plain(arrays: Sequence[Any], gradients: bool = False) -> None:
    """Have arrays, and with `gradients` theirs too, in MXNet's plain layout for what is queued from now on."""
    if arrays:
        handles = ffi.new("uintptr_t[]", [_handle(array) for array in arrays])
        check_call(lib.clg_mx_push_plain(handles, len(arrays), gradients))


class Recorded:
    """What a cached graph was given in recorded calls, and its backwards read; it is forgotten with the graph."""

    def __init__(self) -> None:
        self._arrays: dict[int, list[Any]] = {}  # by identity: an array, and for how many more backwards
        with _lock:
            _every.add(self)

    def add(self, arrays: Iterable[Any]) -> None:
        """Have arrays in the plain layout for the next backwards, too."""
        with _lock:
            for array in arrays:
                self._arrays[id(array)] = [array, BACKWARDS]

    def taken(self) -> list[Any]:
        """Return the arrays for a backward; the lock is held."""
        found = [entry[0] for entry in self._arrays.values()]
        for entry in self._arrays.values():
            entry[1] -= 1
        for key in [key for key, entry in self._arrays.items() if not entry[1]]:
            del self._arrays[key]
        return found


_every: weakref.WeakSet[Recorded] = weakref.WeakSet()


def _handle(array: Any) -> int:
    # the layout of an array whose elements are on the device does not depend on these
    handle = getattr(array, "handle_alone", None) or array.handle
    return int(handle.value)


def before_backward() -> None:
    """Have what was recorded, and its gradients, in the plain layout for a backward."""
    with _lock:
        arrays = [array for recorded in list(_every) for array in recorded.taken()]
    make_plain(arrays, gradients=True)
