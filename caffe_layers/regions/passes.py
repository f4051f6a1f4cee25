"""Passes of layers and regions: calls with the arrays that fill them, and the memory of what a forward pass keeps."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from clgraft import core
from clgraft.caffe_layers.regions.memory import SKIPPED, buffer, filled
from clgraft.core import abi
from clgraft.core.graph import Call, Value
from clgraft.core.graph.structure import SKIPPED as UNWANTED
from clgraft.core.problem import Argument

Fetch = Callable[[], Any]


class Kept:
    """Arrays of what a forward pass keeps, in device memory where the device has some, until the next forward pass."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._arrays: dict[Value, Any] = {}

    def buffer(self, argument: Argument) -> core.Buffer:
        """Return the buffer of a value."""
        value = Value(argument.name, argument.shape, argument.dtype)
        if value not in self._arrays:
            self._arrays[value] = self._context.empty(value.shape, value.dtype)
        return filled(self._arrays[value], argument.dtype)


class Pass:
    """A pass of a layer or of a region, which is one call.

    Parameters
    ----------
    call : callable
        Returns the call when the pass first runs, or None where there is nothing to run.
    arrays : mapping of str to (callable, int)
        Of values in arrays of Caffe's or of the layers: what returns the array, C-contiguous and of any shape, and how
        it is written.
    memory : callable
        Returns the buffer of another value, for an argument of its name.
    number : callable
        Returns the value of a scalar by its name.
    overlapping : collection of str
        Outputs whose memory may be that of an input: they are written when the pass has run.
    finish : callable
        Waits for the device; called where no result is on the host, because host memory that was read may change then.
    """

    def __init__(
        self,
        call: Callable[[], Call | None],
        arrays: Mapping[str, tuple[Fetch, int]],
        memory: Callable[[Argument], core.Buffer],
        number: Callable[[str], Any],
        overlapping: Collection[str] = (),
        finish: Callable[[], None] | None = None,
    ) -> None:
        self._call, self._arrays, self._memory, self._number = call, arrays, memory, number
        self._overlapping, self._finish = frozenset(overlapping), finish
        self._plan: Any = None
        self._is_planned = False

    def run(self) -> None:
        """Run the pass, which is planned on first use."""
        if not self._is_planned:
            self._bind()
        if self._plan is None:
            return
        plan, bound = self._plan, self._bound
        for place, fetch in self._moving:
            plan.move(bound, place, fetch())
        late = [self._apart(*one) for one in self._late] if self._late else ()
        scalars = self._scalars
        if self._deferred:
            scalars = tuple([self._number(one) if isinstance(one, str) else one for one in scalars])
        plan.run_bound(bound, scalars)
        if self._waits:
            self._finish()  # type: ignore[misc]
        for array, result in late:
            array[...] = result

    def _apart(self, place: int, fetch: Fetch) -> tuple[Any, Any]:
        """Let an output be written to memory of its own; return its array and that memory."""
        array = fetch()
        result = np.empty_like(array)
        self._plan.move(self._bound, place, result)
        return array, result

    def _bind(self) -> None:
        """Plan the pass, and find what fills the arguments of its call."""
        call = self._call()
        self._is_planned = True
        if call is None:
            return
        self._scalars, self._owner = call.scalars, call.owner
        self._deferred = any(isinstance(scalar, str) for scalar in call.scalars)
        self._moving: list[tuple[int, Fetch]] = []
        self._late: list[tuple[int, Fetch]] = []
        buffers = []
        for place, (argument, name) in enumerate(zip(call.arguments, call.names)):
            fetch, mode = self._arrays.get(name, (None, core.OVERWRITE))
            if fetch is None:
                buffers.append(self._fixed(call, name, argument))
                continue
            buffers.append(buffer(fetch(), mode, argument.dtype))
            apart = name in self._overlapping and argument.role == "out"
            (self._late if apart else self._moving).append((place, fetch))
        written = (one.kind for one, argument in zip(buffers, call.arguments) if argument.role != "in")
        self._waits = self._finish is not None and all(kind == abi.lib.CLG_DEVICE for kind in written)
        self._bound, self._plan = call.plan.bind(buffers), call.plan

    def _fixed(self, call: Call, name: str, argument: Argument) -> core.Buffer:
        """Return the buffer of what lies in the same memory in every run."""
        if name == UNWANTED:
            return SKIPPED
        if name in call.constants:
            return filled(call.constants[name], argument.dtype)
        return self._memory(replace(argument, name=name))
