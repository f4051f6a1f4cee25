"""Registers operators with MXNet through its C interface.

`mx.operator.register` makes eleven new C callbacks and wraps every array in a Python object for each call, which
costs more than many operators do; it also keeps one set of backward dependencies for the whole process. Here the
callbacks are made once, find their operator by the context number that MXNet carries, and see only addresses.
"""

from __future__ import annotations

import ctypes
import itertools
import sys
import threading
import traceback
from ctypes import POINTER, c_char, c_char_p, c_int, c_void_p
from functools import cache, lru_cache
from typing import Any, Callable

import numpy as np
from mxnet.base import _LIB, MXCallbackList, check_call, mx_int, mx_uint
from mxnet.ndarray.ndarray import _DTYPE_MX_TO_NP

from clgraft.core import ClgraftError, ProblemError
from clgraft.mxnet_ops.execution import Execution
from clgraft.mxnet_ops.operator import FAMILIES, OUT, Operator, Shape, find_operator

GROUPS = 6
FLOATS = ("float32", "float16", "float64")
DTYPES = {code: np.dtype(kind).name for code, kind in _DTYPE_MX_TO_NP.items() if code >= 0 and kind is not None}

_DELETE = ctypes.CFUNCTYPE(c_int, c_void_p)
_LIST = ctypes.CFUNCTYPE(c_int, POINTER(POINTER(POINTER(c_char))), c_void_p)
_INFER_SHAPE = ctypes.CFUNCTYPE(c_int, c_int, POINTER(c_int), POINTER(POINTER(mx_int)), c_void_p)
_INFER_TYPE = ctypes.CFUNCTYPE(c_int, c_int, POINTER(c_int), c_void_p)
_DEPENDENCIES = ctypes.CFUNCTYPE(
    c_int, POINTER(c_int), POINTER(c_int), POINTER(c_int), POINTER(c_int), POINTER(POINTER(c_int)), c_void_p
)
_CREATE_OPERATOR = ctypes.CFUNCTYPE(
    c_int, c_char_p, c_int, POINTER(POINTER(mx_uint)), POINTER(c_int), POINTER(c_int), POINTER(MXCallbackList), c_void_p
)
_RUN = ctypes.CFUNCTYPE(c_int, c_int, POINTER(c_void_p), POINTER(c_int), POINTER(c_int), c_int, c_void_p)
_CREATOR = ctypes.CFUNCTYPE(c_int, c_char_p, c_int, POINTER(c_char_p), POINTER(c_char_p), POINTER(MXCallbackList))

_PLAIN = ctypes.CFUNCTYPE(c_int)
_numbers = itertools.count(1)  # 0 would reach a callback as None
_alive: dict[int, Any] = {}
_errors = threading.local()


def last_error() -> Exception | None:
    """Give, once, the error that a callback of this thread met last: MXNet's own text does not carry it."""
    error = getattr(_errors, "error", None)
    _errors.error = None
    return error


class _Call:
    """One call of an operator as MXNet holds it: its attributes, and its operator once they have been checked."""

    def __init__(self, op_type: str, given: dict[str, str]) -> None:
        self.op_type, self.given = op_type, given
        self.hold: dict[str, Any] = {}  # what MXNet reads after a callback has returned
        self._operator: Operator | None = None

    @property
    def operator(self) -> Operator:
        if self._operator is None:
            self._operator = find_operator(self.op_type, self.given)
        return self._operator


def _callback(kind: Any) -> Callable[[Callable[..., None]], Any]:
    """Make a C callback of a function whose last argument becomes the object behind the context number."""

    def wrap(function: Callable[..., None]) -> Any:
        def entry(*arguments: Any) -> int:
            try:
                function(*arguments[:-1], _alive[arguments[-1]])
            except Exception as error:
                _errors.error = error
                text = str(error) if isinstance(error, ClgraftError) else traceback.format_exc()
                print(f"clgraft: {text}", file=sys.stderr, flush=True)
                return 0
            return 1

        return kind(entry)

    return wrap


@_DELETE
def _delete(number: int) -> int:
    _alive.pop(number, None)
    return 1


@cache
def _name_block(names: tuple[str, ...]) -> Any:
    """Give names as MXNet reads them; kept, because it reads after the callback has returned."""
    block = (c_char_p * (len(names) + 1))(*(name.encode() for name in names), None)
    return block, ctypes.cast(block, POINTER(POINTER(c_char)))


@_callback(_LIST)
def _list_arguments(out: Any, call: _Call) -> None:
    out[0] = _name_block(call.operator.arguments)[1]


@_callback(_LIST)
def _list_outputs(out: Any, call: _Call) -> None:
    out[0] = _name_block(call.operator.outputs)[1]


@_callback(_LIST)
def _list_auxiliary(out: Any, call: _Call) -> None:
    out[0] = _name_block(call.operator.auxiliary)[1]


@lru_cache(maxsize=4096)
def _shape_blocks(operator: Operator, given: tuple[Shape | None, ...]) -> Any:
    """Give inferred shapes as lengths, pointers, and the memory that these point to; None if too little is known."""
    found = operator.infer(given)
    if found is None:
        return None
    flat = [shape for group in found for shape in group]
    blocks = [(mx_int * max(len(shape), 1))(*shape) for shape in flat]
    return [len(shape) for shape in flat], [ctypes.cast(block, POINTER(mx_int)) for block in blocks], blocks


@_callback(_INFER_SHAPE)
def _infer_shape(count: int, ndims: Any, shapes: Any, call: _Call) -> None:
    operator = call.operator
    inputs = len(operator.arguments)
    given: list[Shape | None] = []
    for i in range(inputs):
        shape = tuple(shapes[i][j] for j in range(ndims[i]))
        given.append(None if ndims[i] < 0 or min(shape, default=0) < 0 else shape)
    found = call.hold["shapes"] = _shape_blocks(operator, tuple(given))
    if found is None:  # MXNet asks again when it knows more
        for i in range(inputs, count):
            ndims[i] = -1
        return
    for i, (length, pointer) in enumerate(zip(found[0], found[1])):
        ndims[i] = length
        shapes[i] = pointer


@_callback(_INFER_TYPE)
def _infer_type(count: int, types: Any, call: _Call) -> None:
    operator = call.operator
    names = operator.arguments
    known = {name: types[i] for i, name in enumerate(names) if types[i] >= 0}
    for name, code in known.items():
        if DTYPES[code] not in FLOATS:
            raise operator.error(name, f"of dtype {DTYPES[code]}", f"one of {FLOATS}")
    codes = set(known.values()) or {-1}
    if len(codes) > 1:
        got = {name: DTYPES[code] for name, code in known.items()}
        raise operator.error("inputs", f"of dtypes {got}", "one dtype")
    code = codes.pop()
    for i in range(count):
        types[i] = code


@_callback(_DEPENDENCIES)
def _dependencies(out_grad: Any, in_data: Any, out_data: Any, count: Any, found: Any, call: _Call) -> None:
    operator = call.operator
    numbers = [out_grad[i] for i in range(len(operator.outputs)) if operator.backward_reads_gradients]
    numbers += [in_data[i] for i in range(len(operator.arguments))]
    if operator.backward_reads_outputs:
        numbers += [out_data[i] for i in range(len(operator.outputs))]
    block = (c_int * len(numbers))(*numbers)
    call.hold["dependencies"] = block
    count[0] = len(numbers)
    found[0] = ctypes.cast(block, POINTER(c_int))


@_callback(_CREATE_OPERATOR)
def _create_operator(device: bytes, count: int, shapes: Any, ndims: Any, types: Any, ret: Any, call: _Call) -> None:
    operator = call.operator
    if not device.startswith(b"cpu"):
        raise ProblemError(
            f"[{call.op_type}] got arrays on {device.decode()}, expected arrays on the CPU: "
            "the device that computes is chosen by CLGRAFT_DEVICE"
        )
    found = tuple(tuple(shapes[i][j] for j in range(ndims[i])) for i in range(len(operator.arguments)))
    execution = Execution(operator, found, DTYPES[types[0]])
    number = next(_numbers)
    _alive[number] = execution
    ret[0] = _RUNNING.listed(number, execution)


def _take(count: int, arrays: Any, tags: Any, absent: tuple[int, ...] = ()) -> list[list[int]]:
    """Give the arrays' addresses by tag, and free the handles, which MXNet made for this call.

    Arrays of the tags `absent` are no dependencies: they hold nothing, and asking for their memory ends the process.
    """
    groups: list[list[int]] = [[] for _ in range(GROUPS)]
    pointer = c_void_p()
    for i in range(count):
        handle = c_void_p(arrays[i])
        if tags[i] in absent:
            groups[tags[i]].append(0)
        else:
            check_call(_LIB.MXNDArrayGetData(handle, ctypes.byref(pointer)))
            groups[tags[i]].append(pointer.value or 0)
        check_call(_LIB.MXNDArrayFree(handle))
    return groups


@_callback(_RUN)
def _forward(count: int, arrays: Any, tags: Any, requests: Any, train: int, execution: Execution) -> None:
    groups = _take(count, arrays, tags)
    execution.forward(bool(train), requests[: len(groups[OUT])], groups)


@_callback(_RUN)
def _backward(count: int, arrays: Any, tags: Any, requests: Any, train: int, execution: Execution) -> None:
    groups = _take(count, arrays, tags, execution.operator.absent_in_backward)
    execution.backward(requests[: len(execution.operator.arguments)], groups)


class _Callbacks:
    """A set of callbacks, laid out once; a list of them differs only in its context numbers."""

    def __init__(self, *callbacks: Any) -> None:
        self._count = len(callbacks)
        self._functions = (_PLAIN * self._count)(*(ctypes.cast(item, _PLAIN) for item in callbacks))
        self._pointer = ctypes.cast(self._functions, POINTER(_PLAIN))
        self._contexts = c_void_p * self._count

    def listed(self, number: int, holder: Any) -> MXCallbackList:
        """Give the list for a context number; `holder` keeps what it points to."""
        contexts = holder.contexts = self._contexts(*([number] * self._count))
        return MXCallbackList(self._count, self._pointer, ctypes.cast(contexts, POINTER(c_void_p)))


_RUNNING = _Callbacks(_delete, _forward, _backward)
_CALLING = _Callbacks(
    _delete,
    _list_arguments,
    _list_outputs,
    _list_auxiliary,
    _infer_shape,
    _dependencies,
    _create_operator,
    _infer_type,
)


@_CREATOR
def _create(op_type: bytes, count: int, keys: Any, values: Any, ret: Any) -> int:
    # a failure here would end the process: attributes are checked when MXNet asks for the arguments' names
    call = _Call(op_type.decode(), {keys[i].decode(): values[i].decode() for i in range(count)})
    number = next(_numbers)
    _alive[number] = call
    ret[0] = _CALLING.listed(number, call)
    return 1


def register(family: type[Operator]) -> type[Operator]:
    """Make a family known to MXNet as ``op_type=family.op_type``; use as a decorator."""
    FAMILIES[family.op_type] = family
    check_call(_LIB.MXCustomOpRegister(family.op_type.encode(), _create))
    return family
