"""Compare generated kernels with the device's copy: `CLGRAFT_DEVICE=gpu python benchmarks/pointwise.py [--batch 8]`.

Only the device is timed: many launches in a row on device buffers. GB/s counts every argument once, so batch norm,
which reads its inputs twice, can reach about two thirds of the copy's speed.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyopencl as cl
from progress import announced, first

from clgraft import core
from clgraft.core import BatchNormProblem, PointwiseProblem, Reduction
from clgraft.core.nn import activations, elementwise
from clgraft.core.planning.launches import Accumulate, Buffer, Constant, Local, Scalar, Workspace


def problems(batch: int) -> dict[str, core.Problem]:
    """Return the timed problems by name."""
    big, small = (batch, 64, 112, 112), (batch, 512, 7, 7)
    both = Reduction("sum", (0, 2, 3))
    found: dict[str, core.Problem] = {
        "relu": activations.forward("relu", big),
        "relu backward": activations.backward("relu", big),
        "sigmoid": activations.forward("sigmoid", big),
        "gelu": activations.forward("gelu", big),
        "sum of two": elementwise.sum_forward(big, 2),
        "scale and bias, 112x112": PointwiseProblem((big, (64, 1, 1), (64, 1, 1)), "y0 = x0 * x1 + x2;"),
        "scale and bias, 7x7": PointwiseProblem((small, (512, 1, 1), (512, 1, 1)), "y0 = x0 * x1 + x2;"),
        "scale, channels last": PointwiseProblem(((batch, 112, 112, 64), (64,)), "y0 = x0 * x1;"),
        "sum of everything": PointwiseProblem((big,), "y0 = x0;", (Reduction(),)),
        "sums per channel": PointwiseProblem((big,), "y0 = x0; y1 = x0 * x0;", (both, both)),
        "sums per channel, 7x7": PointwiseProblem((small,), "y0 = x0;", (both,)),
        "sum over rows": PointwiseProblem(((100_000, 64),), "y0 = x0;", (Reduction("sum", (0,)),)),
    }
    for channels, pixels in ((64, 3136), (256, 3136), (512, 49)):
        for direction in ("forward_training", "backward_training", "forward_inference", "backward_inference"):
            found[f"batch norm c{channels} s{pixels} {direction}"] = BatchNormProblem(
                direction, batch, channels, pixels
            )
    return found


def bound(context: core.Context, problem: core.Problem) -> tuple[Callable[[], None], Any]:
    """Return a function that enqueues the problem's launches, and the objects that have to live as long."""
    chosen = context.choose(problem)
    steps = chosen.launches
    rng = np.random.default_rng(0)
    buffers = {}
    for argument in problem.arguments():
        buffers[argument.name] = cl.Buffer(context.cl_context, cl.mem_flags.READ_WRITE, argument.nbytes)
        values = np.asarray(rng.random(argument.shape), argument.dtype)
        cl.enqueue_copy(context.queue, buffers[argument.name], values)
    workspace = cl.Buffer(context.cl_context, cl.mem_flags.READ_WRITE, max(steps.workspace_bytes, 4))
    for launch in steps.launches:
        values: list[Any] = []
        for item in launch.arguments:
            if isinstance(item, Buffer):
                values += [buffers[item.name], np.uint64(0)]
            elif isinstance(item, Workspace):
                values += [workspace, np.uint64(item.offset_bytes // item.itemsize)]
            elif isinstance(item, Accumulate):
                values.append(np.int32(0))
            elif isinstance(item, Constant):
                values.append(item.value)
            elif isinstance(item, Scalar):
                values.append(np.dtype(item.dtype).type(1e-3))
            elif isinstance(item, Local):
                values.append(cl.LocalMemory(item.nbytes))
        launch.kernel.built.set_args(*values)

    def enqueue() -> None:
        for launch in steps.launches:
            cl.enqueue_nd_range_kernel(context.queue, launch.kernel.built, launch.global_size, launch.local_size)

    return enqueue, (buffers, workspace)


def seconds(queue: Any, enqueue: Callable[[], Any], repeats: int) -> float:
    """Return the median time of one of many calls in a row."""
    enqueue()
    queue.finish()
    times = []
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(repeats):
            enqueue()
        queue.finish()
        times.append((time.perf_counter() - start) / repeats)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=10)
    options = parser.parse_args()
    context = core.context()
    print(context.device.name)
    size = options.batch * 64 * 112 * 112 * 4
    source, target = (cl.Buffer(context.cl_context, cl.mem_flags.READ_WRITE, size) for _ in range(2))
    copy = seconds(context.queue, lambda: cl.enqueue_copy(context.queue, target, source), options.repeats)
    print(f"{'copy':44} {1e6 * copy:10.1f} us {2 * size / copy / 1e9:8.1f} GB/s")
    for name, problem in announced(problems(options.batch).items(), first):
        enqueue, _alive = bound(context, problem)
        took = seconds(context.queue, enqueue, options.repeats)
        moved = sum(argument.nbytes for argument in problem.arguments())
        print(f"{name:44} {1e6 * took:10.1f} us {moved / took / 1e9:8.1f} GB/s", flush=True)


if __name__ == "__main__":
    main()
