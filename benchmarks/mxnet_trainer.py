"""Times training steps of models of MXNet's zoo: Gluon's trainer, clgraft's, and the core's trainer without MXNet.

    python benchmarks/mxnet_trainer.py resnet50_v1 resnet18_v1 --batch 32 --device gpu --precision float16 --module
    python benchmarks/mxnet_trainer.py mobilenetv2_1.0 vgg16 --batch 2 --size 64 --device pocl --staged
    python benchmarks/mxnet_trainer.py resnet18_v1 --trainers clgraft,core --threads --json trainers.json

All run the same net in regions with SGD and momentum: `gluon.Trainer` with ``ocl_sgd``; `clgraft.mxnet_ops.Trainer`,
with `--precision` once more; and `session.trainer` of the exported symbol, which is one graph with its update; with
`--module` also a `Module` with ``ocl_sgd``, and one that `clgraft.mxnet_ops.resident` was called for. Times are medians
of the wall clock and of the processors, with what a step sends to the device and brings back. `--trainers` chooses,
`--loss swapped` has the loss in a region, `--loss inside` in the same block as the net, and so in its region, `--read`
reads the loss after each step, `--threads` adds the processor time of each thread that takes some. A file of `--json`
has a row for each net with the core's trainer as the peer, one for each precision with float32 as the peer, and the
processor time.

With `--staged` PoCL is treated as a device with memory of its own. Its threads compute kernels and nothing else, so the
processors' other time is what a step costs the host of a GPU: Python, MXNet, and the copies that a bus would make.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from progress import announced
from timing import keep, row

SETTINGS = {"learning_rate": 1e-3, "momentum": 0.9}
TRAINERS = ("gluon", "clgraft", "core")
LOSSES = (OUTSIDE, SWAPPED, INSIDE) = ("outside", "swapped", "inside")
WARM = 3  # steps before those that are timed
LISTED = 6  # threads with `--threads`
workers: set[str] = set()  # threads that compute kernels, with `--staged`


def parse() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nets", nargs="*", default=["resnet18_v1"], help="names of the model zoo")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--size", type=int, default=224, help="of the images")
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--device", help="as CLGRAFT_DEVICE; by default what that holds")
    parser.add_argument("--precision", choices=("float16", "bfloat16"), help="time clgraft's trainer with it too")
    parser.add_argument("--module", action="store_true", help="time modules too")
    parser.add_argument("--loss", choices=LOSSES, default=LOSSES[0], help="MXNet's, a region, or in the net's")
    parser.add_argument("--read", action="store_true", help="read the loss after each step")
    parser.add_argument("--trainers", default=",".join(TRAINERS), help="which to time (default: %(default)s)")
    parser.add_argument("--threads", action="store_true", help="show the processor time of threads")
    parser.add_argument("--json", default="", metavar="FILE", help="keep the times")
    parser.add_argument("--staged", action="store_true", help="treat PoCL as a device with memory of its own")
    return parser.parse_args()


def gluon_step(name: str, options: argparse.Namespace, trainer: str, precision: str | None) -> tuple[Any, Callable]:
    """Return a net with regions, and a step that trains it."""
    import mxnet as mx
    from mxnet import autograd, gluon

    import clgraft.mxnet_ops as ops

    net = gluon.model_zoo.vision.get_model(name, prefix="net_")
    net.initialize(mx.init.Xavier(magnitude=2))
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
    x, y = map(mx.nd.array, data(options))
    if options.loss == INSIDE:
        whole = with_loss(net, loss_of)
        ops.swap_block(whole, precision=precision)
        whole.hybridize(static_alloc=True, static_shape=True)
    else:
        ops.swap_block(net, precision=precision)
        if options.loss == SWAPPED:
            ops.swap_block(loss_of)
        for block in (net, loss_of):
            block.hybridize(static_alloc=True, static_shape=True)
        whole = lambda x, y: loss_of(net(x), y)  # noqa: E731
    whole(x, y).wait_to_read()
    kind, optimizer = (gluon.Trainer, "ocl_sgd") if trainer == "gluon" else (ops.Trainer, "sgd")
    made = kind(net.collect_params(), optimizer, dict(SETTINGS))

    def step() -> None:
        with autograd.record():
            loss = whole(x, y)
        loss.backward()
        made.step(options.batch)
        if options.read:
            loss.asnumpy()
        mx.nd.waitall()

    net(x).wait_to_read()  # for those who export it
    return net, step


def with_loss(net: Any, loss: Any) -> Any:
    """Return a block that computes a net and its loss, as one graph."""
    from mxnet import gluon

    class WithLoss(gluon.HybridBlock):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.loss = net, loss

        def hybrid_forward(self, F: Any, x: Any, y: Any) -> Any:
            return self.loss(self.net(x), y)

    return WithLoss()


def module_step(name: str, options: argparse.Namespace, resident: bool) -> Callable:
    """Return a step that trains a module with regions."""
    import mxnet as mx

    import clgraft.mxnet_ops as ops

    net = mx.gluon.model_zoo.vision.get_model(name, prefix="net_")
    symbol = mx.sym.SoftmaxOutput(net(mx.sym.var("data")), name="softmax")
    module = mx.mod.Module(ops.swap_symbol(symbol, regions=True)[0])
    images, labels = map(mx.nd.array, data(options))
    module.bind([("data", images.shape)], [("softmax_label", labels.shape)])
    module.init_params(mx.init.Xavier(magnitude=2))
    module.init_optimizer(optimizer="ocl_sgd", optimizer_params=dict(SETTINGS))
    if resident:
        ops.resident(module)
    batch = mx.io.DataBatch([images], [labels])

    def step() -> None:
        module.forward_backward(batch)
        module.update()
        mx.nd.waitall()

    return step


def data(options: argparse.Namespace) -> tuple[np.ndarray, np.ndarray]:
    """Return images and labels."""
    rng = np.random.default_rng(0)
    images = rng.standard_normal((options.batch, 3, options.size, options.size)).astype(np.float32)
    return images, rng.integers(0, 1000, options.batch).astype(np.float32)


def core_step(net: Any, options: argparse.Namespace) -> Callable:
    """Return a step of the core's trainer for the same net."""
    import clgraft

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "net")
        net.export(path)
        session = clgraft.load(f"{path}-symbol.json", f"{path}-0000.params")
    trainer = session.trainer("sgd", lr=SETTINGS["learning_rate"], momentum=0.9, loss="softmax_cross_entropy")
    images, labels = data(options)
    return lambda: trainer.step({"data": images, "label": labels})


def stage() -> None:
    """Treat a processor as a device with memory of its own, and tell its driver's threads from others."""
    from clgraft import core
    from clgraft.core.session.context import Context

    before = set(thread_seconds())
    own = core.context()
    workers.update(set(thread_seconds()) - before)
    device = dataclasses.replace(own.device, host_access="staged")
    made = Context(own.cl_context, own.cl_device, own.queue, device=device)
    core.context = lambda *arguments: made


def thread_seconds() -> dict[str, float]:
    """Return the processor seconds of each thread of this process."""
    found = {}
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(FileNotFoundError), open(f"/proc/self/task/{thread}/schedstat") as file:
            found[thread] = int(file.read().split()[0]) / 1e9  # of one that has not ended meanwhile
    return found


def kernel_seconds() -> float:
    """Return the processor seconds of the threads that compute kernels, where they are known."""
    return sum(seconds for thread, seconds in thread_seconds().items() if thread in workers)


def show(what: str, step: Callable, runs: int, threads: bool = False) -> tuple[float, float]:
    """Time a step and print a line; return the seconds of the wall clock and of the processors."""
    from clgraft import core

    context = core.context()
    for _ in range(WARM):
        step()
    times = []
    before, alone = context.counters(), thread_seconds()
    for _ in range(runs):
        computing, began, busy = kernel_seconds(), time.perf_counter(), time.process_time()
        step()
        context.finish()
        spent = time.process_time() - busy
        times.append((time.perf_counter() - began, spent, spent - (kernel_seconds() - computing)))
    after = context.counters()
    wall, processors, host = (1e3 * statistics.median(column) for column in zip(*times))
    down, up = ((after[key] - before[key]) / runs / 1e6 for key in ("bytes_to_device", "bytes_to_host"))
    without = f", without kernels {host:.2f} ms" if workers else ""
    moved = f"{down:.1f} MB down, {up:.1f} MB up"
    print(f"{what:40} {wall:8.2f} ms  processors {processors:8.2f} ms{without}  {moved}", flush=True)
    if threads:
        spent_by = {thread: 1e3 * (now - alone.get(thread, 0.0)) / runs for thread, now in thread_seconds().items()}
        most = sorted(((ms, thread) for thread, ms in spent_by.items() if ms > 0.05), reverse=True)
        rest = sum(ms for ms, _ in most[LISTED:])
        print(
            "   ", *(f"{name_of(thread)} {ms:.1f}" for ms, thread in most[:LISTED]), f"others {rest:.1f} ms", flush=True
        )
    return 1e-3 * wall, 1e-3 * processors


def name_of(thread: str) -> str:
    """Return the name and the number of a thread, or `main` for the one that runs this program."""
    if int(thread) == os.getpid():
        return "main"
    with contextlib.suppress(FileNotFoundError), open(f"/proc/self/task/{thread}/comm") as file:
        return f"{file.read().strip()}:{thread}"
    return thread


def main() -> None:
    """Print a line for each net and trainer."""
    options = parse()
    if options.device:
        os.environ["CLGRAFT_DEVICE"] = options.device
    import clgraft.mxnet_ops  # noqa: F401
    from clgraft import core

    if options.staged:
        stage()
    print(f"{core.context().device}, batch {options.batch}, {options.size} pixels; medians of {options.runs} steps")
    timed = options.trainers.split(",")
    every = [("gluon", None), *[("clgraft", options.precision)] * bool(options.precision), ("clgraft", None)]
    rows: list[Any] = []
    for name in announced(options.nets):
        found, net = {}, None
        for trainer, precision in every:
            if trainer in timed:
                net, step = gluon_step(name, options, trainer, precision)
                what = f"{name}, {trainer}'s trainer, {precision or 'float32'}"
                found[trainer, precision] = show(what, step, options.runs, options.threads)
        if "core" in timed:
            what = f"{name}, the core's trainer, float32"
            net = net or gluon_step(name, options, "gluon", None)[0]
            found["core", None] = show(what, core_step(net, options), options.runs, options.threads)
        for resident in (False, True) if options.module else ():
            show(f"{name}, {'resident ' * resident}module", module_step(name, options, resident), options.runs)
        rows += rows_of(name, found, options.precision)
    keep(options.json, core.context(), rows, {"core": "the core's trainer", "float32": "clgraft in float32"})


def rows_of(name: str, found: dict[tuple[str, str | None], tuple[float, float]], precision: str | None) -> list[Any]:
    """Return the rows of a net, from the seconds by trainer and precision."""
    rows = []
    ours, core, smaller = (found.get(key) for key in (("clgraft", None), ("core", None), ("clgraft", precision)))
    if ours is not None:
        peer, seconds = ("", 0.0) if core is None else ("core", core[0])
        rows = [row("trainers", name, "training", peer, seconds, ours[0])]
        rows.append(row("trainers, processors", name, "training", "", 0.0, ours[1]))
    if ours is not None and smaller is not None and precision:
        rows.append(row(f"trainers {precision}", name, "training", "float32", ours[0], smaller[0]))
    return rows


if __name__ == "__main__":
    main()
