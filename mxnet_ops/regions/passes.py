"""Passes of regions in the form in which C runs them: a plan, and which memory fills which argument."""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from clgraft import core
from clgraft.core import abi
from clgraft.core.problem import Argument
from clgraft.core.runtime.plan import ACCUMULATE, DTYPE_CODES, SKIP
from clgraft.mxnet_ops.engine.calls import ffi, lib
from clgraft.mxnet_ops.engine.operator import AUX, IN, IN_GRAD, OUT, STATE
from clgraft.mxnet_ops.regions.lowering import KEPT, LoweredPass, RegionLowering
from clgraft.mxnet_ops.regions.region import OUTSIDE, Entry
from clgraft.mxnet_ops.regions.residents import Residents


class Copy:
    """Memory of the device that holds an input as the last forward sent it (``clg_array``)."""

    def __init__(self, context: core.Context, nbytes: int) -> None:
        self._lifetime = context.lifetime
        out = context.ffi.new("clg_array *")
        status = context.lib.clg_array_create(context.handle, nbytes, out)
        if status:
            raise core.ExecutionError(context.ffi.string(context.lib.clg_last_error()).decode(), status)
        self.address = int(context.ffi.cast("uintptr_t", out[0]))
        weakref.finalize(self, context.lib.clg_array_destroy, out[0]).atexit = False


def memory_of(array: Any) -> tuple[Any, int, int]:
    """Return a NumPy or device array, or a copy, as a ``clg_mx_memory``; it must stay as long as C knows it."""
    if isinstance(array, Copy):
        return ffi.cast("void *", array.address), abi.lib.CLG_ARRAY, 0
    if isinstance(array, np.ndarray):
        return ffi.cast("void *", array.ctypes.data), abi.lib.CLG_HOST, 0
    return ffi.cast("void *", array.base_data.int_ptr), abi.lib.CLG_DEVICE, 0


TRAINING = (1, 3)  # forward and backward, as C counts passes
TOKEN_BYTES = 4


def copy_of(place: int) -> str:
    """Return the name of the copy that a training forward leaves of an input for its backward."""
    return f"copy{place}"


@dataclass
class _Filled:
    """Arguments of a plan for C: see ``clg_mx_argument``, ``clg_mx_pass``."""

    arguments: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    fixed: list[tuple[Any, int, int]] = field(default_factory=list)
    copies: list[int] = field(default_factory=list)
    keeps: bool = False


class Pass:
    """A pass of a region, compiled for each set of write requests that it meets.

    Parameters
    ----------
    lowered : LoweredPass
    lowering : RegionLowering
        Of the region.
    context : Context
    constants : mapping of str to array
        Values of inputs that are frozen.
    residents : Residents, optional
    """

    def __init__(
        self,
        lowered: LoweredPass,
        lowering: RegionLowering,
        context: core.Context,
        constants: Mapping[str, Any],
        residents: Residents | None = None,
    ) -> None:
        self.lowered, self.lowering, self._residents = lowered, lowering, residents
        every = {**lowered.constants, **constants}
        self._compiled = context.compile(lowered.graph, constants=every, precision=lowered.precision)

    def bind(
        self, which: int, modes: Sequence[int], places: Mapping[str, int], pattern: Mapping[str, int]
    ) -> tuple[Any, tuple[Any, ...]]:
        """Return the ``clg_mx_pass`` for a set of write requests, and what owns the memory that it points to.

        Parameters
        ----------
        which : int
            As C counts them: forward not training, forward training, then backward likewise.
        modes : sequence of int
            Write modes of the region's outputs, or of its inputs' gradients; then the number of the pattern.
        places : mapping of str to int
            Where the region at work has its own arrays, copies of inputs among them.
        pattern : mapping of str to int
            Write modes of the gradients of residents, by the residents' names.
        """
        graph, bound = self.lowered.graph, self.lowered.bound
        mode = {n: self._mode(n, modes, pattern) for n in graph.outputs if bound[n][0] in (OUT, IN_GRAD)}
        wanted = [name for name in graph.outputs if mode.get(name) != SKIP]
        plan, constants = None, {}
        if wanted or graph.states:
            added = [name for name in wanted if mode.get(name) == ACCUMULATE]
            plan, constants = self._compiled.prepared(wanted, added)
        filled = self._filled(which, plan.arguments if plan else (), constants, mode, places)
        taken = len(self.lowering.region.taken)
        zeros = [(place, 0, self._nbytes((OUTSIDE, place))) for place in self.lowered.zeros if place < taken]
        if which >= 2:
            zeros += [(taken + number, 0, TOKEN_BYTES) for number in range(self.lowering.region.tokens)]
        blocks = {
            "requests": ffi.new("int32_t[]", list(modes)),
            "fixed": ffi.new("clg_mx_memory[]", filled.fixed),
            "copies": ffi.new("int32_t[]", filled.copies) if max(filled.copies, default=-1) >= 0 else ffi.NULL,
            "zeros": ffi.new("clg_mx_zero[]", zeros),
        }
        step = {
            "problem": ffi.new("char[]", str(plan.problem if plan else "").encode()),
            "arguments": ffi.new("clg_mx_argument[]", filled.arguments),
            "scalars": ffi.new("double[]", 1),
        }
        counts = {"plan": ffi.cast("void *", plan.address if plan else 0), "argument_count": len(filled.arguments)}
        made = ffi.new(
            "clg_mx_pass *",
            {
                **blocks,
                "step": {**step, **counts},
                "which": which,
                "keeps": filled.keeps,
                "request_count": len(modes) - 1,
                "zero_count": len(zeros),
            },
        )
        return made, (plan, constants, *blocks.values(), *step.values())

    def _mode(self, name: str, modes: Sequence[int], pattern: Mapping[str, int]) -> int:
        """Return the write mode of an output."""
        resident = self._resident(*self.lowered.bound[name])
        return pattern[resident] if resident else modes[self.lowered.bound[name][1]]

    def _resident(self, group: int, place: int) -> str:
        """Return the name of the resident that a variable, or whose gradient a value, is; empty if it is none."""
        if self._residents is None or group not in (IN, IN_GRAD, AUX):
            return ""
        region = self.lowering.region
        name = (region.auxiliary_names if group == AUX else region.names)[place]
        return name if name in self._residents.arrays else ""

    def _nbytes(self, entry: Entry) -> int:
        return math.prod(self.lowering.shapes[entry]) * np.dtype(self.lowering.dtype_of(entry)).itemsize

    def _filled(
        self,
        which: int,
        arguments: Sequence[Argument],
        constants: Mapping[str, Any],
        mode: Mapping[str, int],
        places: Mapping[str, int],
    ) -> _Filled:
        """Return which memory fills which argument of a plan."""
        filled, bound = _Filled(), self.lowered.bound
        for argument in arguments:
            name, copy, requested = argument.name, -1, int(argument.name in mode)
            resident = "" if name in constants else self._resident(*bound[name])
            if name in constants:
                group, place = lib.CLG_MX_FIXED, len(filled.fixed)
                filled.fixed.append(memory_of(constants[name]))
            elif resident and self._residents is not None:
                group, place = lib.CLG_MX_FIXED, len(filled.fixed)
                if bound[name][0] == IN_GRAD:
                    requested = lib.CLG_MX_ADDED if mode[name] == ACCUMULATE else 0
                    filled.fixed.append(memory_of(self._residents.device_gradient(resident)))
                else:
                    filled.fixed.append(memory_of(self._residents.device_array(resident)))
            else:
                group, place = bound[name]
                if group == IN and which in TRAINING:
                    copy = places.get(copy_of(place), -1)
                filled.keeps = filled.keeps or group == KEPT or copy >= 0
                if group in (STATE, KEPT):
                    group, place = STATE, places[name]
            filled.arguments.append((group, place, requested, DTYPE_CODES[argument.dtype], argument.nbytes))
            filled.copies.append(copy)
        return filled
