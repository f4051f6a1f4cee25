"""Runs what was recorded: compiled passes, and the memory of what lives from forward to backward."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from clgraft.core.graph.recorder import Lowered
from clgraft.core.runtime.plan import accumulate

ALIGNMENT = 128  # bytes
Fetch = Callable[[int], np.ndarray]


class Replay:
    """The passes of a recording, compiled when they are first run.

    What a forward pass keeps lies in arrays of its own, in device memory where the device has some, until the next
    forward pass.

    Parameters
    ----------
    context : Context
    constants : mapping of int to array
        Memory that never changes, by its address in the recording.
    overlapping : collection of int
        Addresses of outputs whose memory may be that of an input: they are written when the pass has run.
    passes : str, optional
        Switches of passes of graphs.
    """

    def __init__(
        self,
        context: Any,
        constants: Mapping[int, np.ndarray],
        overlapping: Collection[int] = (),
        passes: str | None = None,
    ) -> None:
        self.context, self.constants, self.overlapping, self.passes = context, constants, frozenset(overlapping), passes
        self.kept: tuple[str, ...] = ()
        self._memory: dict[str, Any] = {}
        self._passes: dict[int, _Pass] = {}

    def run(self, lowered: Lowered, fetch: Fetch, keeps: bool = False) -> None:
        """Run a pass.

        Parameters
        ----------
        lowered : Lowered
            The same object compiles once.
        fetch : callable
            Returns the array that an address of the recording stands for in this run: C-contiguous, of any shape.
        keeps : bool
            Whether it is a forward pass, whose kept values replace those of the one before.
        """
        found = self._passes.get(id(lowered))
        if found is None:
            found = self._passes[id(lowered)] = _Pass(lowered, self.context, self.constants, self.passes)
        if keeps:
            self.kept = lowered.kept
        late: list[tuple[np.ndarray, np.ndarray]] = []
        arrays: dict[str, Any] = {}
        for name, address, shape, dtype, is_output in found.arguments:
            if address is None:
                arrays[name] = self._kept(name, lowered)
                continue
            array = fetch(address).reshape(shape)
            if array.dtype != dtype:
                array = array.view(dtype)  # whole numbers with and without a sign
            if is_output and address in self.overlapping:
                result = np.empty_like(array)
                late.append((array, result))
                array = result
            arrays[name] = accumulate(array) if name in lowered.added else array
        if not any(is_output for *_, is_output in found.arguments) and not lowered.graph.states:
            return
        written = found.compiled.run(arrays, {name: scalar.value() for name, scalar in lowered.scalars.items()})
        if not any(isinstance(array, np.ndarray) for array in written.values()):
            self.context.finish()  # host memory that was read may change once this returns
        for array, result in late:
            array[...] = result

    def report(self, lowered: Lowered) -> Any:
        """Return what a pass that has run needs."""
        return self._passes[id(lowered)].compiled.report()

    def _kept(self, name: str, lowered: Lowered) -> Any:
        if name not in self._memory:
            value = lowered.graph.values[name]
            self._memory[name] = self._empty(value.shape, value.dtype)
        return self._memory[name]

    def _empty(self, shape: tuple[int, ...], dtype: str) -> Any:
        if self.context.device.host_access == "staged":
            import pyopencl.array as device_array

            return device_array.empty(self.context.queue, shape, dtype)
        nbytes = math.prod(shape) * np.dtype(dtype).itemsize
        memory = np.empty(nbytes + ALIGNMENT, np.uint8)
        start = -memory.ctypes.data % ALIGNMENT
        return memory[start : start + nbytes].view(dtype).reshape(shape)


class _Pass:
    """A pass, compiled."""

    def __init__(self, lowered: Lowered, context: Any, constants: Mapping[int, np.ndarray], passes: str | None) -> None:
        graph = self.graph = lowered.graph
        fixed = {name: constants[address] for name, address in lowered.bound.items() if address in constants}
        self.lowered = lowered  # its id is a key as long as it lives
        values = {value.name: value for value in (*graph.inputs, *graph.states)}
        values.update({name: graph.values[name] for name in graph.outputs})
        shaped = {name: array.reshape(values[name].shape) for name, array in fixed.items()}
        self.compiled = context.compile(graph, passes, shaped, precision=lowered.precision)
        outputs = frozenset(graph.outputs)
        self.arguments = tuple(
            (name, lowered.bound.get(name), value.shape, np.dtype(value.dtype), name in outputs)
            for name, value in values.items()
            if name not in fixed
        )
