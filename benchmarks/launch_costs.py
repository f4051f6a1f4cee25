"""What a CPU device's runtime costs on the cores that this process may use: `python benchmarks/launch_costs.py`.

Peaks of arithmetic and copies; microseconds of a launch by its number of work-groups, without work and with some work
of one core that is split into them; and the speed at which one thread touches new memory.
"""

from __future__ import annotations

import os
import resource
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyopencl as cl
from progress import say

from clgraft import core
from clgraft.plugins.command_line.bench import peaks
from clgraft.plugins.command_line.bench.threads import cores

GROUPS = (1, 4, 16, 32, 64, 256, 1024)  # work-groups of a launch
WORK = (0, 20, 100, 400)  # microseconds of one core that are split into work-groups
CHAINS = 12  # independent sums that hide the latency of a multiply-add
NEW_BYTES = 2**26


def median(call: Callable[[], Any], runs: int) -> float:
    """Return the median of some runs in seconds."""
    call()
    times = []
    for _ in range(runs):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def show_launches(context: core.Context, flops: float) -> None:
    """Print what launches take, a line for each amount of work."""
    queue, width = context.queue, max(context.device.vector_width, 4)
    empty = context.kernel("benchmarks/peaks.cl", "nothing", {}).built
    busy = context.kernel("benchmarks/peaks.cl", "fma_chains", {"WIDTH": width, "CHAINS": CHAINS}).built
    sums = cl.Buffer(context.cl_context, cl.mem_flags.READ_WRITE, max(GROUPS) * width * 4)
    empty.set_args(np.int32(0))
    rounds = 1e-6 * flops / context.device.compute_units / (2 * CHAINS * width)  # what one core does in a microsecond

    def launch(kernel: Any, groups: int, count: int) -> None:
        for _ in range(count):
            cl.enqueue_nd_range_kernel(queue, kernel, (groups,), (1,))
        queue.finish()

    print("us of a launch with so many work-groups: each of 50 in a row; alone, with a wait")
    for work in WORK:
        cells = []
        for groups in GROUPS:
            if work:
                busy.set_args(sums, np.float32(0.999), np.int32(max(1, round(work * rounds / groups))))
            kernel = busy if work else empty
            row = median(lambda k=kernel, g=groups: launch(k, g, 50), 11) / 50
            alone = median(lambda k=kernel, g=groups: launch(k, g, 1), 31)
            cells.append(f"{groups}: {1e6 * row:.0f}; {1e6 * alone:.0f}")
        print(f"  {work:3} us of work: " + " | ".join(cells), flush=True)


def show_new_memory() -> None:
    """Print how fast one thread writes memory for the first time and again."""
    began, faults = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    memory = np.empty(NEW_BYTES, np.uint8)
    memory.fill(1)
    first = time.perf_counter() - began
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
    again = median(lambda: memory.fill(1), 5)
    print(f"one thread writes new memory at {NEW_BYTES / first / 1e9:.1f} GB/s ({faults} faults), ", end="")
    print(f"and again at {NEW_BYTES / again / 1e9:.1f} GB/s")


def main() -> None:
    """Print everything."""
    context = core.context()
    device = context.device
    say("peaks")
    found = peaks.measure(context)
    print(f"{device}, {len(cores())} cores, POCL_AFFINITY={os.environ.get('POCL_AFFINITY')}: {found}", flush=True)
    say("launches")
    show_launches(context, found.flops)
    say("new memory")
    show_new_memory()


if __name__ == "__main__":
    main()
