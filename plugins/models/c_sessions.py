"""Answers what `core/abi/session.c` asks: loads models for C programs and runs them.

The question is a `clg_session_question` of `core/abi/planner.h`, whose pointers are the caller's.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from clgraft.core.abi import ffi, lib
from clgraft.core.errors import ArgumentError, BuildError, ClgraftError, DeviceError, ExecutionError
from clgraft.core.model import Port, Session
from clgraft.core.runtime.plan import DTYPE_CODES
from clgraft.plugins.models.loading import load

CODES = {
    **DTYPE_CODES,
    "int64": lib.CLG_INT64,
    "int16": lib.CLG_INT16,
    "int8": lib.CLG_INT8,
    "uint64": lib.CLG_UINT64,
    "uint32": lib.CLG_UINT32,
    "uint16": lib.CLG_UINT16,
    "bool": lib.CLG_BOOL,
}
NAMES = {code: name for name, code in CODES.items()}
MOST_AXES = 8  # of what C programs see
_numbers = itertools.count(1)
_sessions: dict[int, Session] = {}


def answer(question: bytes) -> bytes:
    """Return the answer to a question.

    Raises
    ------
    ExecutionError
        With the ABI's status, if the model or what it is given is refused.
    """
    asked = ffi.cast("clg_session_question *", ffi.from_buffer(question))
    return _ANSWERS[asked.what](asked)


def _create(asked: Any) -> bytes:
    """Load a model; return its number and its ports."""
    try:
        session = load(_text(asked.path), _text(asked.weights), _text(asked.device), _text(asked.precision))
        ports = [*session.inputs, *session.outputs]
        for port in ports:
            if len(port.shape or ()) > MOST_AXES:
                expected = f"at most {MOST_AXES} dimensions"
                raise session.error(f"[session] got {port.name!r} of shape {port.shape}, expected {expected}")
    except (ArgumentError, BuildError, DeviceError, ExecutionError):
        raise
    except ClgraftError as error:
        raise ExecutionError(str(error), lib.CLG_INVALID_MODEL) from error
    except MemoryError as error:
        raise ExecutionError(f"[session] no memory for the model: {error}", lib.CLG_OUT_OF_MEMORY) from error
    number = next(_numbers)
    head = ffi.new("clg_session_ports *", (number, len(session.inputs), len(session.outputs)))
    table = ffi.new("clg_port[]", [_port(port) for port in ports])
    names = b"".join(port.name.encode().replace(b"\0", b"?") + b"\0" for port in ports)
    _sessions[number] = session
    return bytes(ffi.buffer(head)) + bytes(ffi.buffer(table)) + names


def _destroy(asked: Any) -> bytes:
    """Forget a session; runs of other threads end with it."""
    _sessions.pop(asked.number, None)
    return b""


def _shapes(asked: Any) -> bytes:
    """Set types and shapes of the outputs for those of the inputs."""
    session = _sessions[asked.number]
    shapes = {port.name: _shape(asked.inputs[i]) for i, port in enumerate(session.inputs)}
    found = _guarded(session, lambda: session.output_shapes(shapes))
    for i, port in enumerate(session.outputs):
        tensor = asked.outputs[i]
        _describe(tensor, port.name, port.dtype, found[port.name])
        tensor.bytes = math.prod(found[port.name]) * _dtype(tensor.dtype).itemsize
    return b""


def _run(asked: Any) -> bytes:
    """Run a model on the caller's arrays and write the outputs to them."""
    session = _sessions[asked.number]
    given = {port.name: _array(asked.inputs[i]) for i, port in enumerate(session.inputs)}
    results = _guarded(session, lambda: session.run(given))
    short = ""
    for i, port in enumerate(session.outputs):
        tensor, array = asked.outputs[i], np.ascontiguousarray(results[port.name]).reshape(results[port.name].shape)
        _describe(tensor, port.name, array.dtype.name, array.shape)
        if tensor.data != ffi.NULL and tensor.bytes < array.nbytes:
            short = short or f"[session] got {tensor.bytes} bytes for output {port.name}, expected {array.nbytes}"
            tensor.bytes = array.nbytes
        elif tensor.data != ffi.NULL:
            ffi.memmove(tensor.data, array.reshape(-1).view(np.uint8), array.nbytes)
    if short:
        raise ExecutionError(short, lib.CLG_BUFFER_TOO_SMALL)
    return b""


_ANSWERS: dict[int, Callable[[Any], bytes]] = {
    lib.CLG_ASK_CREATE: _create,
    lib.CLG_ASK_SHAPES: _shapes,
    lib.CLG_ASK_RUN: _run,
    lib.CLG_ASK_DESTROY: _destroy,
}


def _guarded(session: Session, call: Callable[[], Any]) -> Any:
    """Return what a call of a session returns; what it refuses is a fault of the caller's arguments."""
    try:
        return call()
    except session.error as error:
        raise ExecutionError(str(error), lib.CLG_INVALID_ARGUMENT) from error
    except MemoryError as error:
        raise ExecutionError(f"[session] no memory for a run: {error}", lib.CLG_OUT_OF_MEMORY) from error


def _text(words: Any) -> str | None:
    return ffi.string(words).decode(errors="surrogateescape") or None if words else None


def _port(port: Port) -> dict[str, Any]:
    shape = [size if isinstance(size, int) else 0 for size in port.shape or ()]
    return {
        "size": ffi.sizeof("clg_port"),
        "dtype": CODES[port.dtype],
        "ndim": len(shape),
        "any": port.shape is None,
        "shape": shape,
        "usual": shape if port.usual is None else list(port.usual),
    }


def _dtype(code: int) -> np.dtype:
    if code == lib.CLG_BFLOAT16:
        import ml_dtypes  # which onnx brings: no other model has arrays of this type

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(NAMES[code])


def _shape(tensor: Any) -> tuple[int, ...]:
    return tuple(tensor.shape[0 : tensor.ndim])


def _array(tensor: Any) -> np.ndarray:
    """Return the caller's memory as an array; a copy where it is not aligned."""
    dtype, shape = _dtype(tensor.dtype), _shape(tensor)
    count = math.prod(shape)
    if not count:
        return np.empty(shape, dtype)
    found = np.frombuffer(ffi.buffer(tensor.data, count * dtype.itemsize), dtype).reshape(shape)
    return np.require(found, requirements="A")


def _describe(tensor: Any, name: str, dtype: str, shape: Sequence[int]) -> None:
    """Set the type and the shape of an output.

    Raises
    ------
    ExecutionError
        If the caller expects another type, or it has too many dimensions.
    """
    if tensor.dtype not in (0, CODES[dtype]):
        got = f"[session] got dtype {tensor.dtype} for output {name}"
        raise ExecutionError(f"{got}, expected {CODES[dtype]} ({dtype}), or 0", lib.CLG_WRONG_DTYPE)
    if len(shape) > MOST_AXES:
        raise ExecutionError(
            f"[session] got output {name} of shape {tuple(shape)}, expected at most {MOST_AXES} dimensions",
            lib.CLG_INVALID_MODEL,
        )
    tensor.dtype, tensor.ndim, tensor.shape = CODES[dtype], len(shape), [*shape, *[0] * (MOST_AXES - len(shape))]
