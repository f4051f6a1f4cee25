"""The machine's ceilings, measured by kernels of our own in the same run: multiply-adds and copied bytes a second."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from clgraft.core import Context, context
from clgraft.core.planning.floor import Peaks

CPU_CHAINS, GPU_CHAINS = 12, 8
GPU_WIDTH = 2
COPY_BYTES = 1 << 28
ROUNDS = 7  # at least
SECONDS = 0.5  # at least: a driver's threads may share a core for a while after a pause
LAUNCH_SECONDS = 0.01  # of arithmetic in one launch, so that its start does not count
MOST_ROUNDS = 10**6  # of multiply-adds in one launch


_known: list[Peaks] = []


def here() -> Peaks:
    """Return the peaks of the process's own device: those that were taken, else measured once."""
    if not _known:
        _known.append(measure())
    return _known[0]


def take(peaks: Peaks) -> None:
    """Take the peaks of the device from another process, which measured them."""
    _known[:] = [peaks]


def measure(on: Context | None = None) -> Peaks:
    """Measure the device of a context, by default the process's own; takes about two seconds."""
    on = on or context()
    return Peaks(_flops(on), _bandwidth(on))


def _best(queue: Any, enqueue: Callable[[], Any]) -> float:
    """Return the shortest time: the highest measurement is closest to a ceiling."""
    times: list[float] = []
    end = time.perf_counter() + SECONDS
    while len(times) < ROUNDS or time.perf_counter() < end:
        times.append(_time(queue, enqueue))
    return min(times)


def _time(queue: Any, enqueue: Callable[[], Any]) -> float:
    start = time.perf_counter()
    enqueue()
    queue.finish()
    return time.perf_counter() - start


def _flops(on: Context) -> float:
    import pyopencl as cl

    cpu = on.device.is_cpu
    width, chains = (max(on.device.vector_width, 4), CPU_CHAINS) if cpu else (GPU_WIDTH, GPU_CHAINS)
    items = on.device.compute_units * (16 if cpu else 2048)
    kernel = on.kernel("benchmarks/peaks.cl", "fma_chains", {"WIDTH": width, "CHAINS": chains}).built
    sums = cl.Buffer(on.cl_context, cl.mem_flags.READ_WRITE, items * width * 4)
    local = (1,) if cpu else (256,)

    def launch() -> None:
        cl.enqueue_nd_range_kernel(on.queue, kernel, (items,), local)

    rounds, took = 50, 0.0  # a driver without multiply-adds of the processor computes them a thousand times slower
    while took < LAUNCH_SECONDS and rounds < MOST_ROUNDS:
        rounds *= 4
        kernel.set_args(sums, np.float32(0.999), np.int32(rounds))
        took = min(_time(on.queue, launch) for _ in range(3))  # a driver may compile within the first launch
    seconds = _best(on.queue, launch)
    return 2.0 * items * width * chains * rounds / seconds


def _bandwidth(on: Context) -> float:
    import pyopencl as cl

    cpu = on.device.is_cpu
    width = max(on.device.vector_width, 4) if cpu else 4
    vectors = 4096 if cpu else 1
    kernel = on.kernel("benchmarks/peaks.cl", "copy_lines", {"WIDTH": width}).built
    flags = cl.mem_flags
    buffers = [cl.Buffer(on.cl_context, flags.READ_WRITE, COPY_BYTES) for _ in range(2)]
    for buffer in buffers:  # the system allocates pages when they are first touched
        cl.enqueue_fill_buffer(on.queue, buffer, np.zeros(1, np.float32), 0, COPY_BYTES)
    kernel.set_args(*buffers, np.int32(vectors))
    items = COPY_BYTES // (4 * width * vectors)
    local = (1,) if cpu else (256,)
    seconds = _best(on.queue, lambda: cl.enqueue_nd_range_kernel(on.queue, kernel, (items,), local))
    return 2.0 * COPY_BYTES / seconds
