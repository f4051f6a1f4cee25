"""Registers operators with MXNet through its C interface.

`mx.operator.register` makes eleven new C callbacks and wraps every array in a Python object for each call, which
costs more than many operators do; it also keeps one set of backward dependencies for the whole process. Here the
callbacks are made once, find their operator by the context number that MXNet carries, and see only addresses.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
import traceback
from collections.abc import Sequence
from ctypes import POINTER, c_char, c_char_p, c_int, c_void_p
from typing import Any, Callable

import numpy as np
from mxnet.base import _LIB, MXCallbackList, check_call, mx_int, mx_uint
from mxnet.ndarray.ndarray import _DTYPE_MX_TO_NP

from clgraft.core import ClgraftError, ProblemError
from clgraft.mxnet_ops.execution import Execution
from clgraft.mxnet_ops.operator import FAMILIES, OUT, Operator, Shape, find_operator

GROUPS = 6
FLOATS = ("float32", "float16", "float64")

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


def _callback(kind: Any, quiet: bool = False) -> Callable[[Callable[..., None]], Any]:
    """Make a C callback of a function whose last argument becomes the object behind the context number."""

    def wrap(function: Callable[..., None]) -> Any:
        def entry(*arguments: Any) -> int:
            try:
                function(*arguments[:-1], _alive[arguments[-1]])
            except Exception as error:
                _errors.error = error
                if not quiet:
                    text = str(error) if isinstance(error, ClgraftError) else traceback.format_exc()
                    print(f"clgraft: {text}", flush=True)
                return 0
            return 1

        return kind(entry)

    return wrap


@_DELETE
def _delete(number: int) -> int:
    _alive.pop(number, None)
    return 1


def _names(pick: Callable[[Operator], Sequence[str]], key: str) -> Any:
    def listed(out: Any, call: _Call) -> None:
        names = [name.encode() for name in pick(call.operator)]
        block = (c_char_p * (len(names) + 1))(*names, None)
        call.hold[key] = block
        out[0] = ctypes.cast(block, POINTER(POINTER(c_char)))

    return _callback(_LIST)(listed)


_list_arguments = _names(lambda operator: operator.arguments, "arguments")
_list_outputs = _names(lambda operator: operator.outputs, "outputs")
_list_auxiliary = _names(lambda operator: operator.auxiliary, "auxiliary")


@_callback(_INFER_SHAPE)
def _infer_shape(count: int, ndims: Any, shapes: Any, call: _Call) -> None:
    operator = call.operator
    inputs = len(operator.arguments)
    given: list[Shape | None] = []
    for i in range(inputs):
        shape = tuple(shapes[i][j] for j in range(ndims[i]))
        given.append(None if ndims[i] < 0 or min(shape, default=0) < 0 else shape)
    found = operator.infer(given)
    if found is None:  # MXNet asks again when it knows more
        for i in range(inputs, count):
            ndims[i] = -1
        return
    flat = [shape for group in found for shape in group]
    blocks = [(mx_int * max(len(shape), 1))(*shape) for shape in flat]
    call.hold["shapes"] = blocks
    for i, (shape, block) in enumerate(zip(flat, blocks)):
        ndims[i] = len(shape)
        shapes[i] = ctypes.cast(block, POINTER(mx_int))


@_callback(_INFER_TYPE)
def _infer_type(count: int, types: Any, call: _Call) -> None:
    operator = call.operator
    names = operator.arguments
    known = {types[i] for i in range(len(names)) if types[i] >= 0}
    for i, name in enumerate(names):
        if types[i] >= 0 and _name_of_type(types[i]) not in FLOATS:
            raise operator.error(name, f"of dtype {_name_of_type(types[i])}", f"one of {FLOATS}")
    if len(known) > 1:
        got = {name: _name_of_type(types[i]) for i, name in enumerate(names) if types[i] >= 0}
        raise operator.error("inputs", f"of dtypes {got}", "one dtype")
    for i in range(count):
        types[i] = known.copy().pop() if known else -1


def _name_of_type(code: int) -> str:
    return np.dtype(_DTYPE_MX_TO_NP[code]).name


@_callback(_DEPENDENCIES)
def _dependencies(out_grad: Any, in_data: Any, out_data: Any, count: Any, found: Any, call: _Call) -> None:
    operator = call.operator
    numbers = [out_grad[i] for i in range(len(operator.outputs))]
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
    execution = Execution(operator, found, _name_of_type(types[0]))
    number = next(_numbers)
    _alive[number] = execution
    ret[0] = _callback_list((_delete, _forward, _backward), number, execution)


def _take(count: int, arrays: Any, tags: Any, absent: int | None = None) -> list[list[int]]:
    """Give the arrays' addresses by tag, and free the handles, which MXNet made for this call.

    Arrays of the tag `absent` are no dependencies: they hold nothing, and asking for their memory ends the process.
    """
    groups: list[list[int]] = [[] for _ in range(GROUPS)]
    pointer = c_void_p()
    for i in range(count):
        handle = c_void_p(arrays[i])
        if tags[i] == absent:
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
    groups = _take(count, arrays, tags, None if execution.operator.backward_reads_outputs else OUT)
    execution.backward(requests[: len(execution.operator.arguments)], groups)


def _callback_list(callbacks: Sequence[Any], number: int, holder: Any) -> MXCallbackList:
    count = len(callbacks)
    functions = (_PLAIN * count)(*(ctypes.cast(item, _PLAIN) for item in callbacks))
    contexts = (c_void_p * count)(*([number] * count))
    holder.callback_list = MXCallbackList(
        count, ctypes.cast(functions, POINTER(_PLAIN)), ctypes.cast(contexts, POINTER(c_void_p))
    )
    holder.callback_arrays = functions, contexts
    return holder.callback_list


_CALL_CALLBACKS = (
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
    ret[0] = _callback_list(_CALL_CALLBACKS, number, call)
    return 1


def register(family: type[Operator]) -> type[Operator]:
    """Make a family known to MXNet as ``op_type=family.op_type``; use as a decorator."""
    FAMILIES[family.op_type] = family
    check_call(_LIB.MXCustomOpRegister(family.op_type.encode(), _create))
    return family
