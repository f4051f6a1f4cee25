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
from clgraft.core.operators.dropout import KEY_WORDS
from clgraft.mxnet_ops.engine.arrays import MIXED
from clgraft.mxnet_ops.engine.calls import ffi, lib
from clgraft.mxnet_ops.engine.errors import keep_error
from clgraft.mxnet_ops.engine.execution import REGIONS, prepare, single_pass
from clgraft.mxnet_ops.engine.operator import Operator, Shape, find_operator
from clgraft.mxnet_ops.engine.partial_shapes import UNKNOWN, UnknownShape, infer_partly
from clgraft.mxnet_ops.engine.random_numbers import Stream
from clgraft.mxnet_ops.engine.registry import announce

FLOATS = ("float32", "float16", "float64")
MOST_NAMED = 4  # arrays in an error about dtypes
KEY_BYTES = KEY_WORDS * np.dtype(np.int32).itemsize
DTYPES = {code: np.dtype(kind).name for code, kind in _DTYPE_MX_TO_NP.items() if code >= 0 and kind is not None}
DTYPES[lib.CLG_MX_MIXED] = MIXED  # of a work; MXNet has no such number


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
        """Add the pass for these write requests, and a pattern of residents, to the region."""

    def keep(self) -> None:
        """Put memory for what backward reads into `own`."""

    def begin_backward(self, inputs: Callable[[], Sequence[int]], modes: Callable[[], Sequence[int]]) -> int:
        """Return the pattern of what a backward writes to residents, which nobody else does until it ends.

        Parameters
        ----------
        inputs, modes : callable
            Return the addresses of the inputs, and the write modes of their gradients.
        """

    def end_backward(self, good: bool) -> None:
        """Let others write to residents."""

    def draw(self, train: bool) -> None:
        """Draw new keys of random numbers."""

    def close(self) -> None:
        """Free what it holds."""


# how a region is made: from a context, its operator, its inputs' shapes and their dtype
STARTS: dict[str, Callable[..., Execution]] = {}
_executions: dict[int, Execution] = {}  # those at work
_numbers: dict[int, tuple[Stream, np.ndarray]] = {}  # the running operators that draw random numbers


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
    flags = ffi.new("int32_t[]", [*map(int, operator.single), 0])
    signature = {
        "backward_reads_outputs": operator.backward_reads_outputs,
        "backward_reads_gradients": operator.backward_reads_gradients,
        "unread_gradients": operator.unread_gradients,
        **{f"{kind}_count": len(names) for kind, names in groups.items()},
        **dict(zip(("arguments", "outputs", "auxiliary"), blocks)),
        "single": flags,
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
    names = (*operator.arguments, *operator.outputs, *operator.auxiliary)
    kinds = zip(names, operator.single, list(types[0 : len(names)]))
    known = [(name, DTYPES[code], single) for name, single, code in kinds if code >= 0]
    for name, dtype, _ in known:
        if dtype not in FLOATS:
            raise operator.error(name, f"of dtype {dtype}", f"one of {FLOATS}")
    data = [(name, dtype) for name, dtype, single in known if not single and name in operator.arguments]
    first, others = _differing(data, [(name, dtype) for name, dtype, single in known if single])
    text = ", ".join(f"{name} of dtype {dtype}" for name, dtype in others[:MOST_NAMED])
    more = f"and {len(others) - MOST_NAMED} more" if len(others) > MOST_NAMED else "next to the others"
    raise operator.error(text, more, f"one dtype: {first[0]} is {first[1]}")


def _differing(data: list[tuple[str, str]], singles: list[tuple[str, str]]) -> tuple[tuple[str, str], list[Any]]:
    """Return an array whose dtype the others should have, and those that have another one.

    `singles` may be float32 where the data are float16, but not some of them.
    """
    kinds = {dtype for _, dtype in data}
    if len(kinds) > 1 or not singles:
        return data[0], [one for one in data if one[1] != data[0][1]]
    allowed = {*kinds, "float32"} if "float16" in kinds else kinds or {singles[0][1]}
    first = next((one for one in singles if one[1] in allowed), (data or singles)[0])
    return first, [one for one in singles if one[1] != first[1]]


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
def start_numbers(execution: Any, op_type: Any, count: int, attributes: Any, key: Any, key_count: int) -> None:
    (drawn,) = _operator(op_type, count, attributes).draws
    words = np.frombuffer(ffi.buffer(lib.clg_mx_state_of(execution, 0), KEY_BYTES), np.int32)
    _numbers[_key(execution)] = Stream(drawn), words


@_answer
def draw(execution: Any, train: int) -> None:
    region = _executions.get(_key(execution))
    if region is not None:
        region.draw(bool(train))
        return
    stream, words = _numbers[_key(execution)]
    stream.advance(bool(train), words)


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
def make_pass(
    execution: Any,
    context: int,
    op_type: Any,
    attribute_count: int,
    attributes: Any,
    key: Any,
    key_count: int,
    which: int,
    modes: Any,
    count: int,
) -> None:
    operator, given = _operator(op_type, attribute_count, attributes), tuple(_shapes(key, key_count, 1))
    found = single_pass(context, operator, given, DTYPES[key[0]], which, tuple(modes[0:count]))  # type: ignore[arg-type]
    if not lib.clg_mx_copy_pass(execution, found[0]):  # its memory stays as long as `found`
        raise MemoryError


@_answer
def make_region_pass(execution: Any, which: int, modes: Any, count: int) -> None:
    _executions[_key(execution)].make(which, tuple(modes[0:count]))


@_answer
def keep(execution: Any) -> None:
    _executions[_key(execution)].keep()


@_answer
def begin_backward(execution: Any, input_count: int, inputs: Any, count: int, modes: Any) -> None:
    def addresses() -> list[int]:
        return [int(ffi.cast("uintptr_t", inputs[place])) for place in range(input_count)]

    modes[count] = _executions[_key(execution)].begin_backward(addresses, lambda: list(modes[0:count]))


@_answer
def end_backward(execution: Any, good: int) -> None:
    _executions[_key(execution)].end_backward(bool(good))


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
