"""Results of regions that stay on the device until somebody asks for them, such as a loss after its backward.

A region whose results go to the host waits for the device, and so does its backward, which is queued after it. A result
that is left on the device holds up nobody: it is brought when Python asks for MXNet's handle of its array.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from mxnet.base import _LIB, check_call
from mxnet.ndarray.ndarray import NDArray, NDArrayBase

from clgraft.core import abi
from clgraft.mxnet_ops.engine.calls import ffi
from clgraft.mxnet_ops.engine.on_demand import DESCRIBING, AsNDArray, fill

_handle: Any = NDArrayBase.handle  # type: ignore[attr-defined]  # of the slot
_known: dict[int, Result] = {}  # by the identity of the array
_described = threading.local()  # heads: identities of arrays of which a backward needs no elements


class Home(Protocol):
    """What results need of the home of their region's residents (`clgraft.mxnet_ops.engine.residents.Home`)."""

    context: Any
    memory: Any
    backwards: int

    def settle(self) -> None:
        """Wait for the regions that were called."""


class Slot:
    """Memory of the device for an output of a region, which each call of it writes anew.

    Parameters
    ----------
    home : Home
    count : int
        Of its elements.
    dtype : str
    mark : cffi pointer
        To an event of the runtime: the end of the last call that has written it.

    Attributes
    ----------
    device : array
        As of `core.model.memory.Memory`.
    """

    def __init__(self, home: Home, count: int, dtype: str, mark: Any) -> None:
        self.home, self.mark = home, mark
        self.device = home.memory.zeros((count,), dtype)
        self.result: Result | None = None

    def clear(self) -> None:
        """Make room for another result: one that may still be asked for moves to other memory."""
        if self.result is not None:
            self.home.settle()
            self.result.device = self.device.copy(self.home.context.queue)
            self.result.slot, self.result = None, None


@dataclass
class Use:
    """When a result is asked for, of all calls that have it.

    Attributes
    ----------
    home : Home
    early : bool
        Whether one was asked for before its backward.
    since : int or None
        The number of backwards at the first call.
    """

    home: Home
    early: bool = False
    since: int | None = None

    @property
    def late(self) -> bool:
        """Whether no result was asked for before its backward, and there has been one."""
        return not self.early and self.since is not None and self.home.backwards > self.since


class Result:
    """What is known of a result of a recorded call.

    Parameters
    ----------
    array : NDArray
        Becomes a `ResultArray`.
    use : Use
    slot : Slot or None
        Where it is on the device; None if it is on the host and has only to be watched.
    """

    def __init__(self, array: NDArray, use: Use, slot: Slot | None) -> None:
        self._use, self.slot = use, slot
        self.device = None if slot is None else slot.device
        self._backwards = use.home.backwards
        use.since = self._backwards if use.since is None else use.since
        if slot is not None:
            slot.result = self
        _known[id(array)] = self
        array.__class__ = ResultArray

    def bring(self, array: NDArray) -> None:
        """Have the elements on the host, in an array that is MXNet's alone from now on."""
        home = self._use.home
        self._use.early = self._use.early or home.backwards == self._backwards
        array.__class__ = NDArray
        try:
            if self.device is not None:
                array.wait_to_read()  # its region has been queued
                event = None if self.slot is None else self.slot.mark[0]
                fill(array, np.ascontiguousarray(home.memory.elements(self.device, event)))
        finally:
            self.forget(id(array))

    def forget(self, identity: int) -> None:
        """Have nothing more to bring for an array, given by its identity."""
        _known.pop(identity, None)
        if self.slot is not None:
            self.slot.result, self.slot = None, None


def _describing(name: str) -> property:
    """Return a property of arrays that needs no elements."""
    original = getattr(NDArray, name)

    def get(self: NDArray) -> Any:
        with described([self]):
            return original.fget(self)

    return property(get, doc=original.__doc__)


class ResultArray(NDArray, metaclass=AsNDArray):  # type: ignore[misc]
    """MXNet's array of a result that nobody has asked for yet."""

    __slots__ = ()

    @property
    def handle(self) -> Any:
        """MXNet's handle, after the elements are on the host, unless a backward begins with this array."""
        result = _known.get(id(self))
        if result is not None and id(self) not in getattr(_described, "heads", ()):
            result.bring(self)
        return _handle.__get__(self)

    @handle.setter
    def handle(self, value: Any) -> None:
        _handle.__set__(self, value)

    shape, size, ndim, dtype, stype, context, ctx = map(_describing, DESCRIBING)

    def __del__(self) -> None:
        result = _known.get(id(self))
        if result is not None:
            result.forget(id(self))
        check_call(_LIB.MXNDArrayFree(_handle.__get__(self)))


def forget_marks(marks: Any) -> None:
    """Release events of the runtime."""
    for place, event in enumerate(marks):
        if event:
            abi.lib.clg_event_destroy(event)
            marks[place] = ffi.NULL


@contextlib.contextmanager
def described(arrays: Collection[Any]) -> Iterator[None]:
    """Have a backward begin with arrays without a look at their elements."""
    before = getattr(_described, "heads", ())
    _described.heads = {id(array) for array in arrays if type(array) is ResultArray} or before
    try:
        yield
    finally:
        _described.heads = before
