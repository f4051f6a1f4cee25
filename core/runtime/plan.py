"""Plans: problems prepared for a device, which callers run on their buffers."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from clgraft.core import html
from clgraft.core.abi import lib
from clgraft.core.errors import ArgumentError, ExecutionError
from clgraft.core.planning.floor import Work
from clgraft.core.problem import Argument, Problem

OVERWRITE, ACCUMULATE, SKIP = lib.CLG_OVERWRITE, lib.CLG_ACCUMULATE, lib.CLG_SKIP
DTYPE_CODES = {
    "float32": lib.CLG_FLOAT32,
    "float16": lib.CLG_FLOAT16,
    "bfloat16": lib.CLG_BFLOAT16,
    "float64": lib.CLG_FLOAT64,
    "int32": lib.CLG_INT32,
    "uint8": lib.CLG_UINT8,
}


class BoundBuffer(NamedTuple):
    """One argument of a fast run.

    Attributes
    ----------
    address : int
        Of host memory, or of a `cl_mem` if `kind` is ``lib.CLG_DEVICE``.
    nbytes : int
        Bytes that may be used from there on.
    dtype : str
    mode : int
        How an output is written: `OVERWRITE`, `ACCUMULATE` or `SKIP`.
    kind : int
        ``lib.CLG_HOST`` or ``lib.CLG_DEVICE``.
    offset : int
        Bytes before the first element.
    """

    address: int
    nbytes: int
    dtype: str
    mode: int = OVERWRITE
    kind: int = lib.CLG_HOST
    offset: int = 0


@dataclass(frozen=True)
class accumulate:  # reads as a verb at the call
    """Marks an output of `Plan.run` that is added to."""

    array: np.ndarray


class Owner(Protocol):
    """What a plan needs of the context that it belongs to: the C runtime, and what keeps the context's handle valid."""

    ffi: Any
    lib: Any
    lifetime: Any


class Plan:
    """A problem prepared for a device. Made by `Context.plan`; safe to run from any thread.

    Attributes
    ----------
    problem : Problem
    algorithm : str
        The implementation's name.
    declined : tuple of (str, str)
        The implementations that stood before it and their reasons; a tuned choice that could not serve comes first.
    tuned : str
        The tuned choice that was taken and where it comes from; empty where planning chose by itself.
    precision : str
        Of its products, if it is less than the dtype's: ``tf32``.
    work : tuple of Work
        What a run has to compute and to move: of a graph's plan that of each of its problems.
    arguments : tuple of Argument
    """

    def __init__(
        self,
        context: Owner,
        problem: Problem,
        algorithm: str,
        declined: tuple[tuple[str, str], ...],
        handle: Any,
        tuned: str = "",
        precision: str = "",
        work: tuple[Work, ...] = (),
    ) -> None:
        self._lifetime = context.lifetime  # not the context, which holds its plans: a cycle would outlive its last user
        self.problem = problem
        self.algorithm = algorithm
        self.declined = declined
        self.tuned = tuned
        self.precision = precision
        self.work = work
        self.arguments = problem.arguments()
        self.scalars = problem.scalars()
        self._handle = handle
        self._lib, self._ffi = context.lib, context.ffi
        self._size = self._ffi.sizeof("clg_buffer")
        self._order = tuple(argument.name for argument in self.arguments)
        self._read = tuple(argument.role == "in" for argument in self.arguments)
        self._place_of = {name: place for place, name in enumerate(self._order)}
        self._last: tuple[list[Any], Any] = ([None] * len(self.arguments), None)
        weakref.finalize(self, self._lib.clg_plan_destroy, handle)

    def __repr__(self) -> str:
        tuned = f", tuned={self.tuned!r}" if self.tuned else ""
        precision = f", precision={self.precision!r}" if self.precision else ""
        return f"Plan({str(self.problem)!r}, algorithm={self.algorithm!r}{tuned}{precision})"

    def _repr_html_(self) -> str:
        rows = [(a.name, a.role, "x".join(map(str, a.shape)), a.dtype) for a in self.arguments]
        rows += [(name, "scalar", "", "") for name in self.scalars]
        notes = [f"tuned: {self.tuned}"] if self.tuned else []
        notes += [f"products in {self.precision}"] if self.precision else []
        notes += [f"{name} declined: {reason}" for name, reason in self.declined]
        return html.table(["argument", "role", "shape", "dtype"], rows, f"{self.problem}: {self.algorithm}", notes)

    @property
    def address(self) -> int:
        """The runtime's handle as a number, for callers in C; good as long as this object is."""
        return int(self._ffi.cast("uintptr_t", self._handle))

    @property
    def runs(self) -> int:
        """How many runs have succeeded."""
        return int(self._lib.clg_plan_runs(self._handle))

    def execute(self, buffers: Sequence[BoundBuffer], scalars: Sequence[float] = ()) -> None:
        """Run on raw memory.

        Parameters
        ----------
        buffers : sequence of BoundBuffer
            In the order of `arguments`. The memory must stay valid until the call returns.
        scalars : sequence of float
            In the order of `scalars`.

        Raises
        ------
        ArgumentError
            If a buffer or a count does not fit.
        ExecutionError
            If the device fails; the arrays' contents are then undefined.
        """
        self.run_bound(self.bind(buffers), scalars)

    def bind(self, buffers: Sequence[BoundBuffer]) -> Any:
        """Return buffers in the C runtime's form, which `run_bound` takes any number of times."""
        bound = self._ffi.new("clg_buffer[]", len(buffers))
        for i, buffer in enumerate(buffers):
            self._write(bound[i], buffer)
        return bound

    def move(self, bound: Any, place: int, array: Any) -> None:
        """Let an argument that `bind` has bound lie in another array in host memory; between its runs."""
        buffer, memory = bound[place], self._ffi.from_buffer(array)
        buffer.handle, buffer.bytes = memory, len(memory)

    def _write(self, b: Any, buffer: BoundBuffer) -> None:
        address, nbytes, dtype, mode, kind, offset = buffer
        b.size = self._size
        b.kind = kind
        b.offset = offset
        b.dtype = DTYPE_CODES[dtype]
        b.mode = mode
        b.handle = self._ffi.cast("void *", address)
        b.bytes = nbytes

    def run_bound(self, bound: Any, scalars: Sequence[float] = (), copies: Any = None) -> None:
        """Run on what `bind` returned (see `execute`), with copies of inputs in the C runtime's form."""
        given = none = self._ffi.NULL
        if len(scalars):
            given = [self._number(*pair) for pair in zip(self.scalars, scalars)] or none
        status = self._lib.clg_plan_start(self._handle, bound, len(bound), given, len(scalars), copies or none, none)
        if status:
            self._raise(status)

    def _number(self, name: str, value: Any) -> float:
        """Return a scalar's value as a float."""
        try:
            if isinstance(value, (str, bytes, np.complexfloating)):  # of which float() makes a number all the same
                raise TypeError
            return float(value)
        except (TypeError, ValueError, OverflowError):
            raise ArgumentError(
                f"[{self.problem.kind}] got {value!r:.200} for the scalar {name}, expected a real number"
            ) from None

    def _raise(self, status: int) -> None:
        text = f"{self._ffi.string(self._lib.clg_last_error()).decode()} (problem: {self.problem})"
        if status in (self._lib.CLG_INVALID_ARGUMENT, self._lib.CLG_BUFFER_TOO_SMALL, self._lib.CLG_WRONG_DTYPE):
            raise ArgumentError(text)
        raise ExecutionError(text, status)

    def run(self, scalars: Mapping[str, float] | None = None, **arrays: Any) -> None:
        """Run on arrays.

        Parameters
        ----------
        scalars : mapping of str to float, optional
            All of the problem's scalars.
        **arrays : numpy.ndarray or pyopencl.array.Array
            All arguments by name: C-contiguous, of the problem's shape and dtype, in host memory or on the device.
            An output may be wrapped in `accumulate`, or be None to be skipped.

        Raises
        ------
        ArgumentError
            Naming the argument that does not fit, what came and what was expected.
        ExecutionError
            If the device fails.
        """
        kind = self.problem.kind
        if set(arrays) != set(self._order):
            raise ArgumentError(f"[{kind}] got arguments {sorted(arrays)}, expected {list(self._order)}")
        self.run_on(arrays, scalars)

    def run_on(self, arrays: Mapping[str, Any], scalars: Mapping[str, float] | None = None, copies: Any = None) -> None:
        """Run on a mapping that holds all arguments (see `run`), and perhaps more, with copies as `run_bound` takes."""
        given = {} if scalars is None else scalars
        if not isinstance(given, Mapping):
            raise ArgumentError(f"[{self.problem.kind}] got scalars {given!r:.200}, expected a dict of name to number")
        if set(given) != set(self.scalars):
            raise ArgumentError(f"[{self.problem.kind}] got scalars {sorted(given)}, expected {list(self.scalars)}")
        self.run_bound(self._bound(arrays), [given[name] for name in self.scalars], copies)

    def bind_arrays(self, arrays: Mapping[str, Any], over: Any = None) -> Any:
        """Return arrays (see `run`) in the form that `run_bound` takes any number of times; they must live as long.

        Parameters
        ----------
        arrays : mapping of str to array
            Arguments by name, and perhaps more; a run needs all of them.
        over : Any, optional
            What an earlier call returned for others, which it leaves as it is.
        """
        bound = self._ffi.new("clg_buffer[]", len(self.arguments))
        if over is not None:
            self._ffi.memmove(bound, over, self._ffi.sizeof(bound))
        for name, array in arrays.items():
            place = self._place_of.get(name)
            if place is not None:
                self._write(bound[place], self._bind(self.problem.kind, self.arguments[place], array))
        return bound

    def _bound(self, arrays: Mapping[str, Any]) -> Any:
        """Return arrays in the C runtime's form; those of the last run are not looked at again.

        What was bound is never changed, since another thread may run on it. The weak references also keep NumPy from
        moving an array's memory. An array of the device may get another buffer: its handle and offset are compared.
        """
        known, bound = self._last
        changes = []
        try:
            for i, (name, is_read, last) in enumerate(zip(self._order, self._read, known)):
                value = arrays[name]
                if last is None or value is None or last[0]() is not value or not _lies(value, last[1], is_read):
                    changes.append((i, value))
        except KeyError:
            missing = [name for name in self._order if name not in arrays]
            raise ArgumentError(f"[{self.problem.kind}] got no array for {missing}, expected all arguments") from None
        if not changes:
            return bound
        fresh = self._ffi.new("clg_buffer[]", len(self.arguments))
        if bound is not None:
            self._ffi.memmove(fresh, bound, self._ffi.sizeof(bound))
        known = list(known)
        for i, value in changes:
            self._write(fresh[i], self._bind(self.problem.kind, self.arguments[i], value))
            known[i] = None if value is None or isinstance(value, accumulate) else (weakref.ref(value), _place(value))
        self._last = known, fresh
        return fresh

    @staticmethod
    def _bind(kind: str, argument: Argument, value: Any) -> BoundBuffer:
        mode = OVERWRITE
        if value is None and argument.role == "out":
            return BoundBuffer(0, 0, argument.dtype, SKIP)
        if isinstance(value, accumulate):
            mode, value = ACCUMULATE, value.array
        on_device = hasattr(value, "base_data")  # a pyopencl.array.Array
        if not on_device and not isinstance(value, np.ndarray):
            raise ArgumentError(
                f"[{kind}] got {type(value).__name__} for {argument.name}, expected a numpy array or a pyopencl array"
            )
        if value.dtype != argument.dtype:
            raise ArgumentError(f"[{kind}] got dtype {value.dtype} for {argument.name}, expected {argument.dtype}")
        if value.shape != argument.shape:
            raise ArgumentError(f"[{kind}] got shape {value.shape} for {argument.name}, expected {argument.shape}")
        if not value.flags.c_contiguous:
            raise ArgumentError(
                f"[{kind}] got strides {value.strides} for {argument.name}, expected a C-contiguous array"
            )
        if on_device:
            handle, offset = _place(value)
            return BoundBuffer(handle, value.nbytes, argument.dtype, mode, lib.CLG_DEVICE, offset)
        if argument.role != "in" and not value.flags.writeable:
            raise ArgumentError(f"[{kind}] got a read-only array for {argument.name}, expected a writable one")
        return BoundBuffer(value.ctypes.data, value.nbytes, argument.dtype, mode)


def _place(array: Any) -> tuple[int, ...]:
    """Return the buffer and the offset of an array of the device; nothing for one of the host."""
    if isinstance(array, np.ndarray):
        return ()
    return (array.base_data.int_ptr if array.base_data is not None else 0, array.offset)


def _lies(array: Any, place: tuple[int, ...], is_read: bool) -> bool:
    """Return whether an array can be bound as it was, when it was at a place."""
    return _place(array) == place if place else is_read or array.flags.writeable
