"""Passes of regions: graphs with the arrays that fill them, and the memory of what lives from forward to backward."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from clgraft.core.graph import Graph, Value
from clgraft.core.runtime.plan import accumulate

ALIGNMENT = 128  # bytes


class Kept:
    """Arrays of what a forward pass keeps, in device memory where the device has some, until the next forward pass."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._arrays: dict[Value, Any] = {}

    def array(self, value: Value) -> Any:
        """Return the array of a value."""
        if value not in self._arrays:
            self._arrays[value] = self._empty(value)
        return self._arrays[value]

    def _empty(self, value: Value) -> Any:
        if self._context.device.host_access == "staged":
            import pyopencl.array as device_array

            return device_array.empty(self._context.queue, value.shape, value.dtype)
        memory = np.empty(value.nbytes + ALIGNMENT, np.uint8)
        start = -memory.ctypes.data % ALIGNMENT
        return memory[start : start + value.nbytes].view(value.dtype).reshape(value.shape)


class Pass:
    """A pass, compiled.

    Parameters
    ----------
    context : Context
    graph : Graph
    arrays : mapping of str to callable
        What returns the array of a value, C-contiguous and of any shape; the other values are kept.
    kept : Kept
    constants : mapping of str to array
        Inputs that never change.
    number : callable
        Returns the value of a scalar by its name.
    added, overlapping : collection of str
        Outputs that are added to what their memory holds, and those whose memory may be that of an input: they are
        written when the pass has run.
    precision : str
        What the graph is compiled with.
    """

    def __init__(
        self,
        context: Any,
        graph: Graph,
        arrays: Mapping[str, Callable[[], np.ndarray]],
        kept: Kept,
        constants: Mapping[str, np.ndarray],
        number: Callable[[str], float],
        *,
        added: Collection[str] = (),
        overlapping: Collection[str] = (),
        precision: str,
    ) -> None:
        self._context, self._kept, self._number = context, kept, number
        self._added, self._overlapping = frozenset(added), frozenset(overlapping)
        values = {value.name: value for value in (*graph.inputs, *graph.states)}
        fixed = {name: array for name, array in constants.items() if name in values}
        values.update({name: graph.values[name] for name in graph.outputs})
        self._arguments = [
            (value, np.dtype(value.dtype), arrays.get(name)) for name, value in values.items() if name not in fixed
        ]
        self._compiled = None
        if graph.outputs or graph.states:
            self._compiled = context.compile(graph, None, fixed, precision=precision)

    def run(self) -> None:
        """Run the pass."""
        if self._compiled is None:
            return
        late: list[tuple[np.ndarray, np.ndarray]] = []
        given: dict[str, Any] = {}
        for value, dtype, fetch in self._arguments:
            name = value.name
            if fetch is None:
                given[name] = self._kept.array(value)
                continue
            array = fetch().reshape(value.shape)
            if array.dtype != dtype:
                array = array.view(dtype)  # whole numbers with and without a sign
            if name in self._overlapping:
                result = np.empty_like(array)
                late.append((array, result))
                array = result
            given[name] = accumulate(array) if name in self._added else array
        scalars = {name: self._number(name) for name in self._compiled.graph.scalars}
        written = self._compiled.run(given, scalars)
        if not any(isinstance(array, np.ndarray) for array in written.values()):
            self._context.finish()  # host memory that was read may change once this returns
        for array, result in late:
            array[...] = result
