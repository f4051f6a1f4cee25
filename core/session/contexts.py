"""The process's contexts, one for each device selector, and contexts on the caller's OpenCL objects."""

from __future__ import annotations

import os
import threading
from typing import Any

from clgraft.core import abi, settings
from clgraft.core.runtime import devices
from clgraft.core.session.context import Context
from clgraft.core.session.fork import owner, refuse_after_fork

_contexts: dict[str, Context] = {}
_contexts_lock = threading.Lock()


def context(selector: str | None = None) -> Context:
    """Return the process's context for a device, made on first use.

    Parameters
    ----------
    selector : str, optional
        ``cpu``, ``gpu``, part of a platform's or a device's name, or ``platform:device`` numbers.
        By default what ``CLGRAFT_DEVICE`` or ``PYOPENCL_CTX`` says, else the best device.

    Raises
    ------
    DeviceError
        If it names no device; the text lists what there is.
    ExecutionError
        In a child that was forked after OpenCL was used.
    """
    name = selector or settings.DEVICE.text() or os.environ.get(devices.PYOPENCL_VARIABLE) or ""
    with _contexts_lock:
        if name not in _contexts or owner() != os.getpid():
            _contexts[name] = Context.on(selector)
        return _contexts[name]


def adopt(cl_context: int, cl_device: int, cl_queue: int, ffi: Any = abi.ffi, lib: Any = abi.lib) -> Context:
    """Return a context on the caller's OpenCL objects, given by address; they are retained."""
    import pyopencl as cl

    refuse_after_fork()
    return Context(
        cl.Context.from_int_ptr(cl_context, True),
        cl.Device.from_int_ptr(cl_device, False),
        cl.CommandQueue.from_int_ptr(cl_queue, True),
        ffi,
        lib,
    )
