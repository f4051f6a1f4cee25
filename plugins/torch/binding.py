"""Runs a region's graph: binds the memory of tensors to the arguments of its plan."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from clgraft.core import Argument, Context, ExecutionError, abi
from clgraft.core.graph import Copies
from clgraft.core.runtime.plan import BoundBuffer
from clgraft.plugins.torch.held import Layout, arrays_of, held
from clgraft.plugins.torch.memory import BLOCKS
from clgraft.plugins.torch.orders import in_memory

ON_HOST, ON_DEVICE, ARRAY = abi.lib.CLG_HOST, abi.lib.CLG_DEVICE, abi.lib.CLG_ARRAY
FIELDS = ("size", "kind", "dtype", "mode", "handle", "offset", "bytes")
BUFFER = np.dtype([(name, np.uint32 if i < 4 else np.uint64) for i, name in enumerate(FIELDS)])  # clg_buffer


class Binding:
    """A compiled graph whose inputs come from tensors, and whose results go to tensors or stay on the device.

    What does not change from run to run is bound once: a net has hundreds of arguments, and PyTorch waits.

    Parameters
    ----------
    context : Context
    compiled : CompiledGraph
    read : mapping of str to int
        Which argument of a call is which input of the graph.
    stays : collection of str
        Outputs that stay on the device, which has memory of its own then.
    """

    def __init__(self, context: Context, compiled: Any, read: Mapping[str, int], stays: Collection[str]) -> None:
        self._ffi, self._copies, self._arrays = context.ffi, compiled.copies, arrays_of(context)
        self._may_hold = context.device.host_access == "staged"
        self.compiled = compiled  # a context counts the runs of graphs that exist
        self.plan, self._constants = compiled.prepared(compiled.graph.outputs)
        places = {argument.name: i for i, argument in enumerate(self.plan.arguments)}
        self._inputs = [(name, read[name], places[name]) for name in read if name in places]
        arguments = [self.plan.arguments[i] for i in sorted(places.values())]
        outputs = [argument for argument in arguments if argument.role == "out"]
        self._made = [(a.name, a.shape, a.dtype) for a in outputs if a.name not in stays]
        self._stay = [(a.name, a.shape, a.dtype) for a in outputs if a.name in stays]
        self._layout = Layout([(shape, dtype) for _, shape, dtype in self._stay])
        self._template = np.zeros(len(arguments), BUFFER)
        for i, argument in enumerate(arguments):
            bound = self.plan.bind([_buffer(argument, self._constants.get(argument.name))])
            self._template[i] = np.frombuffer(self._ffi.buffer(bound), BUFFER)[0]
        self._given = np.array([place for *_, place in self._inputs], np.intp)
        self._host = np.array([places[name] for name, *_ in self._made], np.intp)
        self._device = np.array([places[name] for name, *_ in self._stay], np.intp)
        self._offsets = np.array(self._layout.offsets, np.uint64)

    def run(
        self, arguments: Sequence[Any], versions: Mapping[str, int], copies: Copies | None, hold: bool
    ) -> dict[str, torch.Tensor]:
        """Run the graph and return its results by name.

        Parameters
        ----------
        arguments : sequence of tensor
        versions : mapping of str to int
            Of inputs in host memory.
        copies : Copies, optional
        hold : bool
            Whether tensors may be returned that stand for values on the device.
        """
        buffers = self._template.copy()
        sent, keep = self._bind_inputs(buffers, arguments, versions)
        made = [BLOCKS.empty(shape, dtype) for _, shape, dtype in self._made]
        buffers["handle"][self._host] = [tensor.data_ptr() for tensor in made]
        names = [name for name, *_ in self._made]
        lease = None
        if hold and self._stay:
            lease = self._arrays.take(self._layout.nbytes)
            buffers["kind"][self._device] = ARRAY
            buffers["handle"][self._device] = lease.address
            buffers["offset"][self._device] = self._offsets
        elif self._stay:
            made += [BLOCKS.empty(shape, dtype) for _, shape, dtype in self._stay]
            buffers["handle"][self._device] = [tensor.data_ptr() for tensor in made[len(names) :]]
            names += [name for name, *_ in self._stay]
        bound = self._ffi.from_buffer("clg_buffer[]", buffers)
        known = (copies or self._copies).bind(self.plan.arguments, sent) if sent else None
        try:
            self.plan.run_bound(bound, (), known)
        except ExecutionError as error:
            if error.status != abi.lib.CLG_OUT_OF_MEMORY or not self._arrays.unused:
                raise
            self._arrays.release()
            self.plan.run_bound(bound, (), known)
        del keep
        results = dict(zip(names, made))
        if lease is not None:
            shapes = [shape for _, shape, _ in self._stay]
            results.update(zip((name for name, *_ in self._stay), self._layout.hold(lease, shapes)))
        return results

    def _bind_inputs(
        self, buffers: np.ndarray, arguments: Sequence[Any], versions: Mapping[str, int]
    ) -> tuple[dict[str, int], list[Any]]:
        """Bind the inputs, and return the versions of those in host memory, and what has to live during the run."""
        handles = []
        sent: dict[str, int] = {}
        keep: list[Any] = []
        for name, argument, place in self._inputs:
            tensor = arguments[argument]
            value = held(tensor) if self._may_hold else None
            if value is not None:
                keep.append(value)
                handles.append(value.lease.address)
                buffers["kind"][place] = ARRAY
                buffers["offset"][place] = value.offset
                continue
            if not tensor.is_contiguous():
                tensor = in_memory(tensor.detach())
                keep.append(tensor)
            if versions.get(name):
                sent[name] = versions[name]
            handles.append(tensor.data_ptr())
        buffers["handle"][self._given] = handles
        return sent, keep


def _buffer(argument: Argument, constant: Any) -> BoundBuffer:
    """Return a constant's buffer; without one, host memory whose address runs fill in."""
    if constant is None or not argument.nbytes:
        return BoundBuffer(0, argument.nbytes, argument.dtype, kind=ON_HOST)
    if isinstance(constant, np.ndarray):
        return BoundBuffer(constant.ctypes.data, argument.nbytes, argument.dtype)
    handle = constant.base_data.int_ptr
    return BoundBuffer(handle, argument.nbytes, argument.dtype, kind=ON_DEVICE, offset=constant.offset)
