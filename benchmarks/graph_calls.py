"""Host time of a graph's call beyond what the driver needs for its launches.

    python benchmarks/graph_calls.py --device pocl --launches 200

Each launch adds two arrays of one element, of which one is an argument of the graph. In turns, in one process: the call
`CompiledGraph.run`, the same run through the C ABI with arguments bound before, and a loop in C that enqueues the same
kernels with arguments set before, which is what a driver needs. The differences per launch are the figures.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import numpy as np
from launch_loop import LaunchLoop
from progress import say

from clgraft import core
from clgraft.core import abi
from clgraft.core.graph import GraphBuilder


def main() -> None:
    """Measure a graph of as many launches as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", help="OpenCL device (default: CLGRAFT_DEVICE)")
    parser.add_argument("--launches", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=201)
    options = parser.parse_args()
    context = core.context(options.device)
    on = GraphBuilder()
    total = on.input("first", (1,))
    for i in range(options.launches):
        (total,) = on.add("pointwise x0[1] x1[1] : y0 = x0 + x1;", total, on.input(f"x{i}", (1,)))
    seen: list[Any] = []
    hand_over = context.hand_over
    context.hand_over = lambda problem, launches, name: (seen.append(launches), hand_over(problem, launches, name))[1]
    compiled = context.compile(on.graph(total), "-all")
    arrays = {name: np.ones(1, np.float32) for name in ("first", *(f"x{i}" for i in range(options.launches)))}
    arrays[total] = np.empty(1, np.float32)
    compiled.run(arrays)
    assert arrays[total][0] == options.launches + 1
    plan = compiled.plan()
    bound = plan._bound(arrays)
    launches = seen[-1].launches
    loop = LaunchLoop(context.queue, [(launch.kernel, launch.global_size, launch.local_size) for launch in launches])
    runs = {
        "CompiledGraph.run": lambda: compiled.run(arrays),
        "clg_plan_run": lambda: abi.lib.clg_plan_run(plan._handle, bound, len(bound), abi.ffi.NULL, 0),
        "the driver alone": loop.run,
    }
    say(f"{options.repeats} rounds")
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(options.repeats):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
    driver = statistics.median(times["the driver alone"])
    print(f"{context.device}; {len(launches)} launches; medians of {options.repeats}")
    for name, found in times.items():
        median = statistics.median(found)
        beyond = statistics.median(a - b for a, b in zip(found, times["the driver alone"]))
        print(
            f"  {name}: {1e6 * median:.1f} us, beyond the driver {1e6 * beyond / len(launches):.3f} us for each launch"
        )
    assert driver > 0


if __name__ == "__main__":
    main()
