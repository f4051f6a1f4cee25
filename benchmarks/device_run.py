"""Time clgraft's launches and PyTorch's calls on the device alone; our launches need no PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyopencl as cl
from launch_loop import LaunchLoop

from clgraft.core.planning.launches import Accumulate, Buffer, Constant, Launches, Local, Scalar, Tickets, Workspace
from clgraft.core.planning.structs import StructConstant
from clgraft.core.session.context import Context

if TYPE_CHECKING:
    import torch  # only for what times or compares its tensors

ENQUEUED_MS = 0.02  # a host needs less than that to enqueue a launch or a call
FILL_BYTES, FILL_MS = 2**28, 0.05  # what the device does meanwhile, and the least that it takes
COUNTER_BYTES = 32 << 10  # as many as a context of the runtime has
CYCLES_OF_MS = 2_000_000  # cycles of the device's clock


class DeviceRun:
    """The launches of a problem, bound to buffers of the device."""

    def __init__(
        self,
        context: Context,
        problem: Any,
        arrays: dict[str, np.ndarray],
        scalars: Mapping[str, float] | None = None,
        steps: Launches | None = None,
    ) -> None:
        profiling = cl.command_queue_properties.PROFILING_ENABLE
        queue = cl.CommandQueue(context.cl_context, context.cl_device, properties=profiling)
        self.queue, self.problem, self.algorithm = queue, problem, ""
        if steps is None:
            chosen = context.choose(problem)
            steps, self.algorithm = chosen.launches, chosen.algorithm
        flags = cl.mem_flags.READ_WRITE
        self.buffers = {
            argument.name: cl.Buffer(context.cl_context, flags, max(argument.nbytes, 4))
            for argument in problem.arguments()
        }
        for name, buffer in self.buffers.items():
            filled = arrays.get(name)
            if filled is None:
                cl.enqueue_fill_buffer(queue, buffer, np.float32(np.nan), 0, buffer.size)
            else:
                cl.enqueue_copy(queue, buffer, filled)
        self._lead = cl.Buffer(context.cl_context, flags, FILL_BYTES)
        self._counters = cl.Buffer(context.cl_context, flags, COUNTER_BYTES)
        cl.enqueue_fill_buffer(queue, self._counters, np.int32(0), 0, COUNTER_BYTES)
        self.workspace = cl.Buffer(context.cl_context, flags, max(steps.workspace_bytes, 4))
        self.launches = steps.launches
        for launch in self.launches:
            values: list[Any] = []
            for item in launch.arguments:
                if isinstance(item, Buffer):
                    values += [self.buffers[item.name], np.uint64(0)]
                elif isinstance(item, Workspace):
                    values += [self.workspace, np.uint64(item.offset_bytes // item.itemsize)]
                elif isinstance(item, Accumulate):
                    values.append(np.int32(0))
                elif isinstance(item, Scalar):
                    values.append(np.dtype(item.dtype).type((scalars or {})[item.name]))
                elif isinstance(item, (Constant, StructConstant)):
                    values.append(item.value)
                elif isinstance(item, Local):
                    values.append(cl.LocalMemory(item.nbytes))
                elif isinstance(item, Tickets):
                    values.append(self._counters)
            for i, value in enumerate(values):
                launch.kernel.built.set_arg(i, value)
        bound = [(launch.kernel.built, launch.global_size, launch.local_size) for launch in self.launches]
        self._loop = LaunchLoop(queue, bound)

    def result(self, name: str = "") -> np.ndarray:
        """Run once and return an output, the last one without a name."""
        self._loop.run()
        arguments = {argument.name: argument for argument in self.problem.arguments()}
        argument = arguments[name or list(arguments)[-1]]
        host = np.empty(argument.shape, argument.dtype)
        cl.enqueue_copy(self.queue, host, self.buffers[argument.name])
        return host

    def enough(self) -> int:
        """Return how many runs in a row take half a millisecond, at least 10."""
        return max(10, min(200, math.ceil(0.5 / max(self.milliseconds(10), 1e-4))))

    def milliseconds(self, times: int) -> float:
        """Return the device's time of one of several runs in a row, all of them enqueued before the first one begins.

        Only what stands around them has events: one for each kernel would make it longer, by 2 us on NVIDIA's driver.
        """
        for _ in range(1 + math.ceil(times * len(self.launches) * ENQUEUED_MS / FILL_MS)):
            self._fill(self._lead, FILL_BYTES)
        before = self._fill(self.workspace, 4)
        self._loop.run(times, wait=False)
        after = self._fill(self.workspace, 4)
        after.wait()
        return float(after.profile.start - before.profile.end) * 1e-6 / times

    def _fill(self, buffer: Any, nbytes: int) -> Any:
        return cl.enqueue_fill_buffer(self.queue, buffer, np.float32(0), 0, nbytes)


def torch_milliseconds(call: Callable[[], torch.Tensor], times: int) -> float:
    """Return the device's time of one of several calls in a row, all of them enqueued before the first one begins."""
    import torch

    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(int((1 + times) * ENQUEUED_MS * CYCLES_OF_MS))
    start.record()
    for _ in range(times):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / times


def relative_error(result: np.ndarray, exact: torch.Tensor) -> float:
    """Return the norm of the error divided by the norm of the exact result."""
    import torch

    got = torch.from_numpy(result).to(exact.device, torch.float64)
    return float((got - exact).norm() / exact.norm())
