"""Passes of regions in the form in which C runs them: a plan, and which memory fills which argument."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from clgraft import core
from clgraft.core import abi
from clgraft.core.runtime.plan import ACCUMULATE, DTYPE_CODES, SKIP
from clgraft.mxnet_ops.engine.calls import ffi, lib
from clgraft.mxnet_ops.engine.operator import IN_GRAD, OUT, STATE
from clgraft.mxnet_ops.regions.lowering import KEPT, Lowered, Lowering
from clgraft.mxnet_ops.regions.region import OUTSIDE


def memory_of(array: Any) -> tuple[Any, int, int]:
    """Return a NumPy or device array as a ``clg_mx_memory``; it must stay as long as C knows it."""
    if isinstance(array, np.ndarray):
        return ffi.cast("void *", array.ctypes.data), abi.lib.CLG_HOST, 0
    return ffi.cast("void *", array.base_data.int_ptr), abi.lib.CLG_DEVICE, 0


class Pass:
    """A pass of a region, compiled for each set of write requests that it meets.

    Parameters
    ----------
    lowered : Lowered
    lowering : Lowering
        Of the region.
    context : Context
    """

    def __init__(self, lowered: Lowered, lowering: Lowering, context: core.Context) -> None:
        self.lowered, self.lowering = lowered, lowering
        self._compiled = context.compile(lowered.graph, constants=lowered.constants)

    def bind(self, which: int, modes: Sequence[int], places: Mapping[str, int]) -> tuple[Any, tuple[Any, ...]]:
        """Return the ``clg_mx_pass`` for a set of write requests, and what owns the memory that it points to.

        Parameters
        ----------
        which : int
            As C counts them: forward not training, forward training, then backward likewise.
        modes : sequence of int
            Write modes of the region's outputs, or of its inputs' gradients.
        places : mapping of str to int
            Where the region at work has its own arrays.
        """
        graph, bound = self.lowered.graph, self.lowered.bound
        mode = {name: modes[bound[name][1]] for name in graph.outputs if bound[name][0] in (OUT, IN_GRAD)}
        wanted = [name for name in graph.outputs if mode.get(name) != SKIP]
        plan, constants = None, {}
        if wanted or graph.states:
            added = [name for name in wanted if mode.get(name) == ACCUMULATE]
            plan, constants = self._compiled.prepared(wanted, added)
        arguments, fixed, keeps = [], [], False
        for argument in plan.arguments if plan else ():
            name = argument.name
            if name in constants:
                group, place = lib.CLG_MX_FIXED, len(fixed)
                fixed.append(memory_of(constants[name]))
            else:
                group, place = bound[name]
                keeps = keeps or group == KEPT
                if group in (STATE, KEPT):
                    group, place = STATE, places[name]
            arguments.append((group, place, name in mode, DTYPE_CODES[argument.dtype], argument.nbytes))
        itemsize = np.dtype(self.lowering.dtype).itemsize
        zeros = [(place, 0, math.prod(self.lowering.shapes[OUTSIDE, place]) * itemsize) for place in self.lowered.zeros]
        blocks = {
            "requests": ffi.new("int32_t[]", list(modes)),
            "fixed": ffi.new("clg_mx_memory[]", fixed),
            "zeros": ffi.new("clg_mx_zero[]", zeros),
        }
        step = {
            "problem": ffi.new("char[]", str(plan.problem if plan else "").encode()),
            "arguments": ffi.new("clg_mx_argument[]", arguments),
            "scalars": ffi.new("double[]", 1),
        }
        counts = {"plan": ffi.cast("void *", plan.address if plan else 0), "argument_count": len(arguments)}
        made = ffi.new(
            "clg_mx_pass *",
            {
                **blocks,
                "step": {**step, **counts},
                "which": which,
                "keeps": keeps,
                "request_count": len(modes),
                "zero_count": len(zeros),
            },
        )
        return made, (plan, constants, *blocks.values(), *step.values())
