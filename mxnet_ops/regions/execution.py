"""Runs regions: a compiled graph for each shape and pass, and the arrays that live from forward to backward."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from clgraft import core
from clgraft.core.graph import CompiledGraph
from clgraft.core.runtime.plan import accumulate
from clgraft.mxnet_ops.engine.calls import ffi
from clgraft.mxnet_ops.engine.operator import AUX, IN, IN_GRAD, OUT, OUT_GRAD, STATE, Shape
from clgraft.mxnet_ops.engine.random_numbers import Stream
from clgraft.mxnet_ops.engine.registration import STARTS
from clgraft.mxnet_ops.regions.lowering import KEPT, Lowered, Lowering
from clgraft.mxnet_ops.regions.region import Region

ALIGNMENT = 128  # bytes
MOST_PROGRAMS = 8  # regions and shapes whose memory is kept
MOST_FREE = 2  # sets of kept arrays that wait for the next operator
NULL, ADD = 0, 3  # MXNet's write requests


class Pass:
    """A pass of a region, compiled."""

    def __init__(self, lowered: Lowered, context: core.Context) -> None:
        self.lowered = lowered
        graph = lowered.graph
        self.compiled: CompiledGraph = context.compile(graph, constants=lowered.constants)
        self.outputs = frozenset(graph.outputs)
        values = {value.name: value for value in (*graph.inputs, *graph.states)}
        values.update({name: graph.values[name] for name in graph.outputs})
        self.arguments = tuple(
            (name, lowered.bound[name], value.shape, value.dtype, value.nbytes)
            for name, value in values.items()
            if name not in lowered.constants
        )


class Program:
    """Everything that a region does for given shapes, compiled when it is first needed; shared by its operators."""

    def __init__(self, context: core.Context, region: Region, shapes: tuple[Shape, ...], dtype: str) -> None:
        self.context, self.region = context, region
        self.lowering = Lowering(region, shapes, dtype)
        self._passes: dict[Any, Pass] = {}
        self._free: list[dict[str, Any]] = []
        self._lock = threading.Lock()

    def forward(self, train: bool) -> Pass:
        """Return the forward pass."""
        return self._found(train, lambda: self.lowering.forward(train))

    def backward(self, train: bool, wanted: frozenset[int]) -> Pass:
        """Return the backward pass for the gradients of these arguments."""
        return self._found((train, wanted), lambda: self.lowering.backward(train, wanted))

    def _found(self, key: Any, lower: Any) -> Pass:
        with self._lock:
            if key not in self._passes:
                self._passes[key] = Pass(lower(), self.context)
            return self._passes[key]

    def take(self) -> dict[str, Any]:
        """Return arrays for what lives from forward to backward, where the device reads them without a transfer."""
        with self._lock:
            if self._free:
                return self._free.pop()
        values = self.lowering.forward(True).graph.values
        return {name: self._empty(values[name].shape, values[name].dtype) for name in self.lowering.kept}

    def give_back(self, arrays: dict[str, Any]) -> None:
        """Keep arrays for the next operator that takes some."""
        with self._lock:
            if len(self._free) < MOST_FREE:
                self._free.append(arrays)

    def _empty(self, shape: Shape, dtype: str) -> Any:
        if self.context.device.host_access == "staged":
            import pyopencl.array as device_array

            return device_array.empty(self.context.queue, shape, dtype)
        nbytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        memory = np.empty(nbytes + ALIGNMENT, np.uint8)
        start = -memory.ctypes.data % ALIGNMENT
        return memory[start : start + nbytes].view(dtype).reshape(shape)


@lru_cache(maxsize=MOST_PROGRAMS)
def _program(context: core.Context, region: Region, shapes: tuple[Shape, ...], dtype: str, switches: str) -> Program:
    return Program(context, region, shapes, dtype)


class Execution:
    """A region at work: one per executor, cached graph that waits for its backward, or imperative call.

    A backward belongs to the last forward. What that forward saved stays until the next one, so that a backward may be
    repeated.

    Parameters
    ----------
    program : Program
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._kept: dict[str, Any] = {}
        self._views: dict[str, np.ndarray] = {}
        self._streams: list[tuple[Stream, Sequence[np.ndarray]]] = []
        self._keys: dict[int, np.ndarray] = {}
        for number, graft in enumerate(program.lowering.grafts):
            if graft.draw is not None:
                states = [np.zeros(shape, dtype) for shape, dtype, _ in graft.state]
                self._streams.append((Stream(graft.draw), states))
                self._keys[number] = states[graft.draw.place]

    def close(self) -> None:
        """Leave the kept arrays to other operators."""
        if self._kept:
            self._program.give_back(self._kept)
            self._kept = {}

    def forward(self, train: bool, addresses: Sequence[int], requests: Sequence[int]) -> None:
        """Run the forward pass.

        Parameters
        ----------
        train : bool
        addresses : sequence of int
            Of inputs, outputs and auxiliary states.
        requests : sequence of int
            MXNet's write requests of the outputs.
        """
        for stream, states in self._streams:
            stream.advance(train, states)
        if train and not self._kept:
            self._kept = self._program.take()
        inputs, outputs = len(self._program.region.names), len(self._program.region.heads)
        first = {IN: 0, OUT: inputs, AUX: inputs + outputs}
        found = self._program.forward(train)
        copies = set(addresses[:inputs]) & set(addresses[inputs : inputs + outputs])
        self._run(found, first, addresses, {OUT: requests}, copies)

    def backward(self, train: bool, addresses: Sequence[int], requests: Sequence[int]) -> None:
        """Run the backward pass of the last forward.

        Parameters
        ----------
        train : bool
            Whether that forward trained.
        addresses : sequence of int
            Of inputs, outputs, gradients of the inputs, gradients of the outputs, and auxiliary states.
        requests : sequence of int
            MXNet's write requests of the inputs' gradients.
        """
        inputs, outputs = len(self._program.region.names), len(self._program.region.heads)
        wanted = frozenset(place for place in range(inputs) if requests[place] != NULL)
        first = {
            IN: 0,
            OUT: inputs,
            IN_GRAD: inputs + outputs,
            OUT_GRAD: 2 * inputs + outputs,
            AUX: 2 * (inputs + outputs),
        }
        found = self._program.backward(train, wanted)
        self._run(found, first, addresses, {IN_GRAD: requests}, set())
        for place in found.lowered.zeros:
            if requests[place] != ADD:
                shape = self._program.lowering.shapes[-1, place]
                nbytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(self._program.lowering.dtype).itemsize
                ffi.memmove(ffi.cast("char *", addresses[first[IN_GRAD] + place]), bytes(nbytes), nbytes)

    def _run(
        self,
        found: Pass,
        first: dict[int, int],
        addresses: Sequence[int],
        requests: dict[int, Sequence[int]],
        copies: set[int],
    ) -> None:
        arrays: dict[str, Any] = {}
        late: list[tuple[np.ndarray, np.ndarray]] = []
        for name, (group, place), shape, dtype, nbytes in found.arguments:
            if group == KEPT:
                arrays[name] = self._kept[name]
                continue
            if group == STATE:
                arrays[name] = self._keys[place]
                continue
            request = requests[group][place] if name in found.outputs else -1
            if request == NULL:
                arrays[name] = None
                continue
            address = addresses[first[group] + place]
            view = self._view(name, address, shape, dtype, nbytes)
            if request != -1 and address in copies:
                # an output that lies on an input: the graph may write it before it has read the input
                result = view.copy() if request == ADD else np.empty_like(view)
                late.append((view, result))
                view = result
            arrays[name] = accumulate(view) if request == ADD else view
        written = found.compiled.run(arrays)
        if not any(isinstance(array, np.ndarray) for array in written.values()):
            self._program.context.finish()  # MXNet may free the inputs once this returns
        for view, result in late:
            view[...] = result

    def _view(self, name: str, address: int, shape: Shape, dtype: str, nbytes: int) -> np.ndarray:
        """Return MXNet's memory as an array; such a view owns nothing, and stays right for its address."""
        view = self._views.get(name)
        if view is None or view.ctypes.data != address or view.shape != shape:
            if not nbytes:
                return np.empty(shape, dtype)
            memory = ffi.buffer(ffi.cast("char *", address), nbytes)
            view = self._views[name] = np.frombuffer(memory, dtype).reshape(shape)
        return view


def start(context: core.Context, region: Region, shapes: tuple[Shape, ...], dtype: str) -> Execution:
    """Return a region at work for the shapes of its arguments, with the passes that ``CLGRAFT_GRAPH`` leaves on."""
    return Execution(_program(context, region, shapes, dtype, os.environ.get("CLGRAFT_GRAPH", "")))


STARTS[Region.op_type] = start
