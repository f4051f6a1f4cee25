"""Registers operators with MXNet through its C interface, and answers what `calls` does not know yet.

`mx.operator.register` makes eleven new C callbacks and wraps every array in a Python object for each call, which
costs more than many operators do; it also keeps one set of backward dependencies for the whole process. Here the
callbacks are C functions that look things up. Python is asked the first time that attributes or shapes are met.
"""

from __future__ import annotations

import ctypes
import itertools
import traceback
from collections.abc import Sequence
from typing import Any, Callable, Protocol

import numpy as np
from mxnet.base import _LIB, check_call
from mxnet.ndarray.ndarray import _DTYPE_MX_TO_NP

from clgraft import core
from clgraft.core import ClgraftError, ProblemError
from clgraft.core.log import log
from clgraft.mxnet_ops.engine.calls import ffi, lib
from clgraft.mxnet_ops.engine.errors import keep_error
from clgraft.mxnet_ops.engine.execution import REGIONS, plan_step, prepare
from clgraft.mxnet_ops.engine.operator import Operator, Shape, find_operator
from clgraft.mxnet_ops.engine.partial_shapes import UNKNOWN, UnknownShape, infer_partly
from clgraft.mxnet_ops.engine.random_numbers import Stream
from clgraft.mxnet_ops.engine.registry import announce

FLOATS = ("float32", "float16", "float64")
DTYPES = {code: np.dtype(kind).name for code, kind in _DTYPE_MX_TO_NP.items() if code >= 0 and kind is not None}


class Execution(Protocol):
    """A region at work.

    Attributes
    ----------
    region, own : cffi pointers
        What C runs with: ``clg_mx_region`` and an array of ``clg_mx_memory``. They stay as long as this object.
    """

    region: Any
    own: Any

    def make(self, which: int, modes: Sequence[int]) -> None:
        """Add the pass for these write requests to the region."""

    def keep(self) -> None:
        """Put memory for what backward reads into `own`."""

    def draw(self, train: bool) -> None:
        """Draw new keys of random numbers."""

    def close(self) -> None:
        """Free what it holds."""


# how a region is made: from a context, its operator, its inputs' shapes and their dtype
STARTS: dict[str, Callable[..., Execution]] = {}
_executions: dict[int, Execution] = {}  # those at work
_numbers: dict[int, tuple[Stream, list[np.ndarray]]] = {}  # the running operators that draw random numbers


def _answer(function: Callable[..., None]) -> Callable[..., int]:
    """Let C ask a function of ours; 0 after an error, which is shown and kept for `errors.last_error`.

    An interrupt, which may reach Python anywhere in the call, is kept as well: MXNet knows of the failure alone.
    """

    def entry(*arguments: Any) -> int:
        try:
            function(*arguments)
        except Exception as error:
            keep_error(error)
            text = str(error) if isinstance(error, ClgraftError) else traceback.format_exc()
            if isinstance(error, UnknownShape):  # a question may be asked before shapes are known
                return 0
            log.error("clgraft: %s", text)
            return 0
        return 1

    ffi.def_extern(name=f"clg_mx_py_{function.__name__}", error=0, onerror=_keep_interrupt)(entry)
    return entry


def _keep_interrupt(kind: Any, error: BaseException, trace: Any) -> None:
    keep_error(error)


def _key(execution: Any) -> int:
    return int(ffi.cast("uintptr_t", execution))


def _operator(op_type: Any, count: int, attributes: Any) -> Operator:
    words = [ffi.string(attributes[i]).decode() for i in range(2 * count)]
    return find_operator(ffi.string(op_type).decode(), dict(zip(words[::2], words[1::2])))


@_answer
def describe(call: Any, op_type: Any, count: int, attributes: Any) -> None:
    operator = _operator(op_type, count, attributes)
    groups = {"argument": operator.arguments, "output": operator.outputs, "auxiliary": operator.auxiliary}
    owners = [[ffi.new("char[]", name.encode()) for name in names] for names in groups.values()]
    blocks = [ffi.new("char *[]", names) for names in owners]
    signature = {
        "backward_reads_outputs": operator.backward_reads_outputs,
        "backward_reads_gradients": operator.backward_reads_gradients,
        "unread_gradients": operator.unread_gradients,
        **{f"{kind}_count": len(names) for kind, names in groups.items()},
        **dict(zip(("arguments", "outputs", "auxiliary"), blocks)),
    }
    if not lib.clg_mx_set_signature(call, ffi.new("clg_mx_signature *", signature)):
        raise MemoryError


def _shapes(key: Any, count: int, start: int = 0) -> list[Shape | None]:
    """Read shapes as C writes them: the number of axes (-1: unknown), then their sizes (-1: unknown)."""
    numbers = iter(list(key[0:count])[start:])
    return [None if ndim < 0 else tuple(itertools.islice(numbers, ndim)) for ndim in numbers]


@_answer
def shapes(call: Any, op_type: Any, count: int, attributes: Any, key: Any, key_count: int) -> None:
    operator, given = _operator(op_type, count, attributes), _shapes(key, key_count)
    found = infer_partly(operator, given)
    if found is None:
        # MXNet has no way to be told so: it takes any number of axes for an answer
        unknown = [n for n, shape in zip(operator.arguments, given) if shape is None or UNKNOWN in shape]
        expected = "a shape (without mx.util.np_shape(True), MXNet takes one that holds a 0 for unknown)"
        raise UnknownShape(str(operator.error(unknown[0], "of unknown shape", expected)))
    flat: Sequence[Shape] = [shape for group in found for shape in group]
    sizes = [size for shape in flat for size in shape]
    if not lib.clg_mx_add_shapes(call, key, key_count, [len(shape) for shape in flat], sizes, len(flat)):
        raise MemoryError


@_answer
def refuse_types(op_type: Any, count: int, attributes: Any, types: Any) -> None:
    operator = _operator(op_type, count, attributes)
    known = {name: DTYPES[types[i]] for i, name in enumerate(operator.arguments) if types[i] >= 0}
    for name, dtype in known.items():
        if dtype not in FLOATS:
            raise operator.error(name, f"of dtype {dtype}", f"one of {FLOATS}")
    raise operator.error("inputs", f"of dtypes {known}", "one dtype")


@_answer
def work(
    call: Any, op_type: Any, count: int, attributes: Any, where: Any, device: Any, key: Any, key_count: int
) -> None:
    operator = _operator(op_type, count, attributes)
    place = ffi.string(where).decode()
    if not place.startswith("cpu"):
        raise ProblemError(
            f"[{operator.op_type}] got arrays on {place}, expected arrays on the CPU: "
            "the device that computes is chosen by CLGRAFT_DEVICE"
        )
    found = prepare(core.context(), operator, tuple(_shapes(key, key_count, 1)), DTYPES[key[0]])  # type: ignore[arg-type]
    if not lib.clg_mx_add_work(call, key, key_count, device, found.struct):
        raise MemoryError


@_answer
def plan(problem: Any, context: int, found: Any) -> None:
    found[0] = ffi.cast("void *", plan_step(ffi.string(problem).decode(), context))


@_answer
def start_numbers(execution: Any, op_type: Any, count: int, attributes: Any, key: Any, key_count: int) -> None:
    operator = _operator(op_type, count, attributes)
    calls = operator.calls(tuple(_shapes(key, key_count, 1)), DTYPES[key[0]])  # type: ignore[arg-type]
    assert calls.draw is not None
    states = []
    for place, (shape, kind, _) in enumerate(calls.state):
        empty = np.empty(shape, kind)
        memory = ffi.buffer(lib.clg_mx_state_of(execution, place), empty.nbytes)
        states.append(np.frombuffer(memory, kind).reshape(shape))
    _numbers[_key(execution)] = Stream(calls.draw), states


@_answer
def draw(execution: Any, train: int) -> None:
    region = _executions.get(_key(execution))
    if region is not None:
        region.draw(bool(train))
        return
    stream, states = _numbers[_key(execution)]
    stream.advance(bool(train), states)


@_answer
def end_numbers(execution: Any) -> None:
    _numbers.pop(_key(execution), None)


@_answer
def start_region(execution: Any, number: int) -> None:
    operator, found, dtype = REGIONS[number]
    made = STARTS[operator.op_type](core.context(), operator, found, dtype)
    _executions[_key(execution)] = made
    lib.clg_mx_set_region(execution, made.region, made.own)


@_answer
def make_pass(execution: Any, which: int, modes: Any, count: int) -> None:
    _executions[_key(execution)].make(which, tuple(modes[0:count]))


@_answer
def keep(execution: Any) -> None:
    _executions[_key(execution)].keep()


@_answer
def end_region(execution: Any) -> None:
    made = _executions.pop(_key(execution), None)
    if made is not None:
        made.close()


def _tell_mxnet(family: type[Operator]) -> None:
    """Make a family known to MXNet as ``op_type=family.op_type``."""
    creator = ctypes.c_void_p(int(ffi.cast("uintptr_t", lib.clg_mx_creator())))
    check_call(_LIB.MXCustomOpRegister(family.op_type.encode(), creator))


@_answer
def before_fork() -> None:
    import mxnet

    try:
        mxnet.nd.waitall()  # an error of an operator that was not waited for before is shown here
    finally:
        lib.clg_mx_hold_ends()


announce(_tell_mxnet)
