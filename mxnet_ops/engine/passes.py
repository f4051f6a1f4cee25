"""Passes of operators and regions in the form in which C runs them: a plan, and which memory fills which argument."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from clgraft import core
from clgraft.core import abi
from clgraft.core.graph import Call, Graph, single_call
from clgraft.core.graph.structure import SKIPPED
from clgraft.core.runtime import arrays
from clgraft.core.runtime.plan import ACCUMULATE, DTYPE_CODES, SKIP
from clgraft.mxnet_ops.engine.calls import ffi, lib
from clgraft.mxnet_ops.engine.lowering import KEPT, LoweredPass, Lowering
from clgraft.mxnet_ops.engine.operator import IN, IN_GRAD, OUT, STATE

TRAINING = (1, 3)  # forward and backward, as C counts passes
TOKEN_BYTES = 4


class Copy:
    """Memory of the device that holds a value from forward to backward (``clg_array``)."""

    def __init__(self, context: core.Context, nbytes: int) -> None:
        self._lifetime = context.lifetime
        made = arrays.handle(context.ffi, context.lib, context.handle, nbytes, self)
        self.address = int(context.ffi.cast("uintptr_t", made))


def memory_of(array: Any) -> tuple[Any, int, int, int]:
    """Return a NumPy or device array, or a copy, as a ``clg_mx_memory``; it must stay as long as C knows it."""
    if isinstance(array, Copy):
        return ffi.cast("void *", array.address), abi.lib.CLG_ARRAY, 0, 0
    if isinstance(array, np.ndarray):
        return ffi.cast("void *", array.ctypes.data), abi.lib.CLG_HOST, 0, 0
    return ffi.cast("void *", array.base_data.int_ptr), abi.lib.CLG_DEVICE, 0, array.offset


def copy_of(place: int) -> str:
    """Return the name of the copy that a training forward leaves of an input for its backward."""
    return f"copy{place}"


def kept_shares(graph: Graph) -> dict[str, float]:
    """Return what a graph multiplies each of its moving averages by before it adds to it."""
    found: dict[str, float] = {}
    for node in graph.nodes:
        for name in node.changes:
            found[name] = found.get(name, 1.0) * float(dict(zip(node.problem.scalars(), node.scalars))["keep"])
    return found


@dataclass
class _Filled:
    """Arguments of a plan for C: see ``clg_mx_argument``, ``clg_mx_pass``."""

    arguments: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    fixed: list[tuple[Any, int, int, int]] = field(default_factory=list)
    copies: list[int] = field(default_factory=list)
    averages: list[tuple[float, int, int]] = field(default_factory=list)
    keeps: bool = False


class Pass:
    """A pass of a single operator, planned for each set of write requests that it meets.

    Parameters
    ----------
    lowered : LoweredPass
    lowering : Lowering
        What it is a pass of.
    context : Context
    """

    def __init__(self, lowered: LoweredPass, lowering: Lowering, context: core.Context) -> None:
        self.lowered, self.lowering, self.context = lowered, lowering, context

    def call(self, wanted: Collection[str], added: Collection[str]) -> Call:
        """Return the call that writes these outputs of the graph and adds to some of them."""
        return single_call(self.context, self.lowered.graph, wanted, added)

    def mode(self, name: str, modes: Sequence[int], pattern: Mapping[str, int]) -> int:
        """Return the write mode of an output."""
        return modes[self.lowered.bound[name][1]]

    def fixed(self, name: str, mode: Mapping[str, int], pattern: Mapping[str, int]) -> tuple[Any, int] | None:
        """Return the array, and the request, of a value in memory that no array of MXNet's has; None for others."""
        return None

    def mark(self, pattern: Mapping[str, int]) -> Any:
        """Return where an event marks the end of what leaves outputs on the device; NULL if none are left."""
        return ffi.NULL

    def bind(
        self, which: int, modes: Sequence[int], places: Mapping[str, int], pattern: Mapping[str, int]
    ) -> tuple[Any, tuple[Any, ...]]:
        """Return the ``clg_mx_pass`` for a set of write requests, and what owns the memory that it points to.

        Parameters
        ----------
        which : int
            As C counts them: forward not training, forward training, then backward likewise.
        modes : sequence of int
            Write modes of the outputs, or of the inputs' gradients; then the number of the pattern.
        places : mapping of str to int
            Where the operator at work has its own arrays, copies of inputs among them.
        pattern : mapping of str to int
            Write modes of the gradients of residents, and the calls of what is left aside, by the residents' names.
        """
        graph, bound = self.lowered.graph, self.lowered.bound
        mode = {n: self.mode(n, modes, pattern) for n in graph.outputs if bound[n][0] in (OUT, IN_GRAD)}
        wanted = [name for name in graph.outputs if mode.get(name) != SKIP]
        call = None
        if wanted or graph.states:
            call = self.call(wanted, [name for name in wanted if mode.get(name) == ACCUMULATE])
        filled = self._filled(which, call, mode, places, pattern)
        taken = self.lowering.taken
        zeros = [(place, 0, self.lowering.nbytes(place)) for place in self.lowered.zeros if place < taken]
        if which >= 2:
            zeros += [(taken + number, 0, TOKEN_BYTES) for number in range(self.lowering.tokens)]
        scalars = [float(number) for number in call.scalars] if call else []
        blocks = {
            "requests": ffi.new("int32_t[]", list(modes)),
            "fixed": ffi.new("clg_mx_memory[]", filled.fixed),
            "copies": ffi.new("int32_t[]", filled.copies) if max(filled.copies, default=-1) >= 0 else ffi.NULL,
            "averages": ffi.new("clg_mx_average[]", filled.averages),
            "zeros": ffi.new("clg_mx_zero[]", zeros),
        }
        step = {
            "problem": ffi.new("char[]", str(call.plan.problem if call else "").encode()),
            "arguments": ffi.new("clg_mx_argument[]", filled.arguments),
            "scalars": ffi.new("double[]", scalars),
        }
        counts = {
            "plan": ffi.cast("void *", call.plan.address if call else 0),
            "argument_count": len(filled.arguments),
            "scalar_count": len(scalars),
        }
        made = ffi.new(
            "clg_mx_pass *",
            {
                **blocks,
                "step": {**step, **counts},
                "which": which,
                "mark": self.mark(pattern),
                "keeps": filled.keeps,
                "request_count": len(modes) - 1,
                "zero_count": len(zeros),
                "average_count": len(filled.averages),
            },
        )
        return made, (call, *blocks.values(), *step.values())

    def _filled(
        self,
        which: int,
        call: Call | None,
        mode: Mapping[str, int],
        places: Mapping[str, int],
        pattern: Mapping[str, int],
    ) -> _Filled:
        """Return which memory fills which argument of a call."""
        filled, bound, kept = _Filled(), self.lowered.bound, kept_shares(self.lowered.graph)
        for argument, name in zip(call.arguments, call.names) if call else ():
            group, place, copy, requested = -1, 0, -1, int(name in mode)
            constant = call.constants.get(name) if call else None
            fixed = self.fixed(name, mode, pattern) if constant is None else (constant, 0)
            if fixed is not None:
                group, place, requested = lib.CLG_MX_FIXED, len(filled.fixed), fixed[1]
                filled.fixed.append(memory_of(fixed[0]))
            elif name != SKIPPED:
                group, place = bound[name]
                if group == IN and which in TRAINING:
                    copy = places.get(copy_of(place), -1)
                filled.keeps = filled.keeps or group == KEPT or copy >= 0
                if group in (STATE, KEPT):
                    group, place = STATE, places[name]
            if name in kept and fixed is None:
                filled.averages.append((kept[name], len(filled.arguments), 0))
            filled.arguments.append((group, place, requested, DTYPE_CODES[argument.dtype], argument.nbytes))
            filled.copies.append(copy)
        return filled
