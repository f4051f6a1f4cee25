"""Tells those who keep what they read of MXNet's arrays that an array has been, or may be, written.

MXNet shows nobody how often an array was written. What is noticed are the functions with which programs change
parameters: assignment (so `Parameter.set_data` and `load_parameters`), `copyto` (so `Module.set_params`), arithmetic in
place, trainers, modules and optimizers. Passes of training call `changed` themselves.
"""

from __future__ import annotations

import ctypes
import functools
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import mxnet as mx
from mxnet import gluon
from mxnet.base import _LIB, check_call

Mark = tuple[str, int]


class Reader(Protocol):
    """Who keeps what was read of arrays, and the arrays themselves."""

    def drop(self) -> None:
        """Forget what was read."""


_lock = threading.RLock()
_watched: weakref.WeakKeyDictionary[Reader, frozenset[Mark]] = weakref.WeakKeyDictionary()


def watch(reader: Reader, arrays: Iterable[mx.nd.NDArray]) -> None:
    """Have a reader's `drop` called once one of its arrays is written; it has to hold them."""
    _install()
    marks = _marks(arrays)
    with _lock:
        _watched[reader] = marks


def changed(arrays: Iterable[Any] | None = None) -> None:
    """Say that arrays are written; by default that all may have been."""
    if not _watched:
        return
    marks = None if arrays is None else _marks(arrays)
    with _lock:
        found = [reader for reader, own in _watched.items() if marks is None or not own.isdisjoint(marks)]
        for reader in found:
            del _watched[reader]
    for reader in found:
        reader.drop()


def _marks(arrays: Iterable[Any]) -> frozenset[Mark]:
    """Return what tells arrays: the object and its memory, of which several objects may be views."""
    found: set[Mark] = set()
    for array in arrays:
        if isinstance(array, mx.nd.NDArray):
            found.add(("object", id(array)))
            if array.stype == "default" and array.size:
                found.add(("memory", address_of(array)))
    return frozenset(found)


def address_of(array: mx.nd.NDArray) -> int:
    """Return where the memory of an array is on the host."""
    found = ctypes.c_void_p()
    # the memory of an array whose elements are on the device does not depend on these
    handle = getattr(array, "handle_alone", None) or array.handle
    check_call(_LIB.MXNDArrayGetData(handle, ctypes.byref(found)))
    return found.value or 0


def _telling(original: Callable[..., Any], written: Callable[..., Iterable[Any]]) -> Callable[..., Any]:
    @functools.wraps(original)
    def function(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if _watched:
            changed(written(*args, **kwargs))
        return result

    return function


def _of_trainer(trainer: gluon.Trainer, *_: Any, **__: Any) -> Iterable[Any]:
    return [array for parameter in trainer._params if parameter._data is not None for array in parameter.list_data()]


def _of_module(module: mx.mod.Module, *_: Any) -> Iterable[Any]:
    return [array for executor in module._exec_group.execs for array in executor.arg_arrays]


def _of_updater(_: Any, index: Any, grad: Any, weight: Any) -> Iterable[Any]:
    return weight if isinstance(weight, (list, tuple)) else [weight]


IN_PLACE = ("__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__imod__")
WRITERS: tuple[tuple[type, str, Callable[..., Iterable[Any]]], ...] = (
    *((mx.nd.NDArray, name, lambda array, *_: [array]) for name in IN_PLACE),
    (mx.nd.NDArray, "copyto", lambda array, other=None: [other]),
    (mx.optimizer.Updater, "__call__", _of_updater),
    (gluon.Trainer, "step", _of_trainer),
    (gluon.Trainer, "update", _of_trainer),
    (mx.mod.Module, "update", _of_module),
)


def _install() -> None:
    """Have the functions that write arrays tell; once per process, and only where somebody wants to know."""
    with _lock:
        if getattr(mx.nd.NDArray.copyto, "_tells", False):
            return
        for kind, name, written in WRITERS:
            function = _telling(getattr(kind, name), written)
            setattr(kind, name, function)
        mx.nd.NDArray.copyto._tells = True
