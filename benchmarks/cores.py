"""Account for the time of MXNet's nets on a CPU device: kernels, pauses between them, and the rest.

    python benchmarks/cores.py resnet50_v1 mobilenet1.0 --batch 16 --threads 1,4,16

For each number of cores, in processes that may use no others: what launches cost (`launch_costs.py`); then for each
net inference, forward and backward, and a training step with MXNet's SGD, for MXNet alone in a process, clgraft's
regions alone in a process, and both in turns in one. MXNet has as many threads as cores, or without `--threads` the
faster of its default number and all processors. Of the regions' time it says what their calls take. Their
launches are enqueued once more on a queue with the driver's clock: in the order of the net, which gives the time in
kernels and between them, and each alone several times in a row. Tables show both problem by problem next to what the
measured peaks allow, and the launches with fewer work-groups than twice the cores.
"""

from __future__ import annotations

import argparse
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from progress import announced
from timing import best

from clgraft.core import settings
from clgraft.core.planning.floor import Work
from clgraft.core.planning.floor import floor as floor_of
from clgraft.plugins import registry
from clgraft.plugins.command_line import events
from clgraft.plugins.command_line.bench import peer_threads, peers, threads

ACTIONS = ("inference", "gradients", "training")
AGAIN = 5  # runs of a launch alone, of which the shortest counts
ROUNDS = 4  # rounds of a pass, without the first
MXNETS_SPINCOUNT = "300000"  # the default of GCC's OpenMP library
LEAST_LAUNCHES = 5  # launches of a pass that is listed


def parse() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nets", nargs="*", help="names of MXNet's model zoo; none: the machine alone")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--size", type=int, default=224, help="of the images")
    parser.add_argument("--threads", help="numbers of cores, separated by commas (default: all)")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement of a net")
    parser.add_argument("--rows", type=int, default=25, help="problems and launches that are listed; 0: no kernels")
    parser.add_argument("--parts", default="machine,native,regions,turns", help="what to measure")
    parser.add_argument("--build", action="store_true", help="only build the nets' kernels")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    return parser.parse_args()


class Net:
    """A net of the model zoo that infers and trains."""

    def __init__(self, name: str, side: str, options: argparse.Namespace) -> None:
        import clgraft.mxnet_ops as ops  # isort: skip
        import mxnet as mx

        mx.random.seed(1)
        np.random.seed(1)
        self.mx, self.batch = mx, options.batch
        self.net = mx.gluon.model_zoo.vision.get_model(name)
        self.net.initialize(mx.init.Xavier(magnitude=2))
        rng = np.random.default_rng(2)
        self.x = mx.nd.array(rng.standard_normal((options.batch, 3, options.size, options.size)).astype(np.float32))
        self.labels = mx.nd.array(rng.integers(0, 1000, options.batch).astype(np.float32))
        if side == "regions":
            self.net(mx.nd.zeros((1, 3, options.size, options.size))).wait_to_read()
            ops.swap_block(self.net)
        self.net.hybridize(static_alloc=True, static_shape=True)
        self.loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()
        self.trainer = mx.gluon.Trainer(self.net.collect_params(), "sgd", {"learning_rate": 1e-4, "momentum": 0.9})

    def inference(self) -> None:
        """Run once and wait."""
        self.net(self.x).wait_to_read()

    def gradients(self) -> None:
        """Do a step without the optimizer and wait."""
        with self.mx.autograd.record():
            loss = self.loss(self.net(self.x), self.labels)
        loss.backward()
        self.mx.nd.waitall()

    def training(self) -> None:
        """Do a step and wait."""
        self.gradients()
        self.trainer.step(self.batch)
        self.mx.nd.waitall()


def measured(call: Callable[[], None], seconds: float) -> str:
    """Return medians of a call in words: the wall clock, the time of all processors, and minor faults."""
    for _ in range(2):
        call()
    rows = []
    end = time.perf_counter() + seconds
    while len(rows) < 3 or time.perf_counter() < end:
        began, busy, faults = (
            time.perf_counter(),
            time.process_time(),
            resource.getrusage(resource.RUSAGE_SELF).ru_minflt,
        )
        call()
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
        rows.append((1e3 * (time.perf_counter() - began), 1e3 * (time.process_time() - busy), faults))
    wall, processors, found = (statistics.median(column) for column in zip(*rows))
    return f"{wall:.1f} ms, processors {processors:.0f} ms, {found:.0f} minor faults"


class Calls:
    """The runs of plans, from the lines that the runtime writes to a file."""

    def __init__(self) -> None:
        self.path = settings.VERBOSE_FILE.text()
        self.start = 0

    def reset(self) -> None:
        """Forget what was written so far."""
        self.start = os.path.getsize(self.path) if self.path else 0

    def medians(self) -> str:
        """Return the median times of the plans that ran in every call since the last reset, in words."""
        runs: dict[str, list[float]] = {}
        if self.path:
            with open(self.path, encoding="utf-8") as file:
                file.seek(self.start)
                for event in events.read(file):
                    if event.kind == "run":
                        runs.setdefault(event.problem[:40], []).append(1e3 * event.seconds)
        most = max(map(len, runs.values()), default=0)
        texts = [f"{name} {statistics.median(t):.2f} ms" for name, t in runs.items() if len(t) * 2 >= most]
        return "; calls: " + ", ".join(texts) if texts else ""


class Planned(NamedTuple):
    """A launch of a pass, what it is for, and the number of its node in the graph."""

    launch: Any
    problem: Any
    label: str
    node: int

    @property
    def groups(self) -> int:
        """The number of its work-groups."""
        local = self.launch.local_size or (1,) * len(self.launch.global_size)
        return math.prod(-(-size // part) for size, part in zip(self.launch.global_size, local))


class Passes:
    """Collects the launches of graphs while they are compiled."""

    def __init__(self) -> None:
        from clgraft.core.graph.compiled import CompiledGraph

        self.found: list[tuple[str, list[Planned]]] = []
        original = CompiledGraph._handed_over

        def handed_over(graph: Any, before: Any, placed: Any, *rest: Any) -> Any:
            assembly, owners = placed.assembly, {}
            nodes = zip(placed.graph.nodes, assembly.planned, assembly.algorithms)
            for number, (node, planned, (_, label)) in enumerate(nodes):
                owners.update({id(launch.kernel): (node.problem, label, number) for launch in planned.launches})
            listed = [launch for launch in placed.launches.launches if 0 not in launch.global_size]
            found = [Planned(launch, *owners.get(id(launch.kernel), (None, "copy", -1))) for launch in listed]
            self.found.append((f"{len(placed.graph.nodes)} problems", found))
            return original(graph, before, placed, *rest)

        CompiledGraph._handed_over = handed_over  # type: ignore[method-assign]


def replay(launches: Sequence[Planned], context: Any) -> tuple[list[float], list[float], float]:
    """Enqueue the launches of a pass again, by the kernels of its plan, which have the arguments of its last run.

    Returns
    -------
    inside, alone : list of float
        Milliseconds of each launch by the driver's clock: in its place, and repeated.
    whole : float
        Milliseconds from the first launch's begin to the last one's end.
    """
    import pyopencl as cl

    profiling = cl.command_queue_properties.PROFILING_ENABLE
    queue = cl.CommandQueue(context.cl_context, context.cl_device, properties=profiling)
    kernels = {id(p.launch): cl.Kernel.from_int_ptr(p.launch.kernel.int_ptr) for p in launches}

    def times(chosen: Sequence[Planned]) -> list[tuple[float, float]]:
        found = [
            cl.enqueue_nd_range_kernel(queue, kernels[id(p.launch)], p.launch.global_size, p.launch.local_size)
            for p in chosen
        ]
        queue.finish()
        return [(1e-6 * event.profile.start, 1e-6 * event.profile.end) for event in found]

    rounds = [times(launches) for _ in range(ROUNDS)][1:]
    inside = [statistics.median(r[i][1] - r[i][0] for r in rounds) for i in range(len(launches))]
    alone = [min(end - begin for begin, end in times([one] * AGAIN)) for one in launches]
    return inside, alone, statistics.median(r[-1][1] - r[0][0] for r in rounds)


def account(passes: Passes, context: Any, rows: int) -> None:
    """Print what the kernels of each pass take."""
    from clgraft.plugins.command_line.bench import peaks

    peak = peaks.measure(context)
    print(f"  peak {peak}")
    for name, launches in passes.found:
        if len(launches) < LEAST_LAUNCHES:
            continue
        inside, alone, whole = replay(launches, context)
        print(
            f"  pass of {name}, {len(launches)} launches: {whole:.2f} ms = kernels {sum(inside):.2f} "
            f"(each alone: {sum(alone):.2f}) + between them {whole - sum(inside):.2f}"
        )
        show_problems(launches, inside, alone, peak, rows)
        show_few_groups(launches, inside, alone, 2 * context.device.compute_units, rows // 2)
        sys.stdout.flush()


def show_problems(
    launches: Sequence[Planned], inside: Sequence[float], alone: Sequence[float], peak: Any, rows: int
) -> None:
    """Print the problems of a pass, the longest first."""
    places: dict[tuple[Any, str], list[int]] = {}
    for i, planned in enumerate(launches):
        places.setdefault((planned.problem, planned.label), []).append(i)
    listed, least = [], 0.0
    for (problem, label), found in places.items():
        calls, ms = len({launches[i].node for i in found}), sum(inside[i] for i in found)
        flops, nbytes = (calls * problem.operations, calls * problem.nbytes) if problem is not None else (0, 0)
        floor = 1e3 * floor_of([Work(flops, nbytes)], peak)
        least += floor
        speeds = f"{flops / ms / 1e6:.0f}, {nbytes / ms / 1e6:.0f}"
        own = sum(alone[i] for i in found)
        text = f"{ms:8.3f} | {own:7.3f} | {floor:7.3f} | {len(found):3} | {speeds} | {label}: {problem}"
        listed.append((ms, text))
    print("    ms in net | alone | floor | launches | GFLOPS, GB/s in the net | method: problem")
    for _, text in sorted(listed, reverse=True)[:rows]:
        print("   ", text[:230])
    print(f"    floor of all {least:.2f} ms; {len(listed)} rows")


def show_few_groups(
    launches: Sequence[Planned], inside: Sequence[float], alone: Sequence[float], enough: int, rows: int
) -> None:
    """Print the launches of a pass with fewer work-groups than `enough`."""
    places: dict[tuple[str, str, int], list[int]] = {}
    for i, planned in enumerate(launches):
        if planned.groups < enough:
            key = (str(planned.problem), planned.launch.kernel.function_name, planned.groups)
            places.setdefault(key, []).append(i)
    listed = [
        (sum(inside[i] for i in found), sum(alone[i] for i in found), key, found) for key, found in places.items()
    ]
    count, total = sum(len(found) for *_, found in listed), sum(ms for ms, *_ in listed)
    print(f"    launches with fewer than {enough} work-groups: {count}, {total:.2f} ms in the net")
    for ms, own, (text, kernel, groups), found in sorted(listed, reverse=True)[:rows]:
        print(f"    {ms:8.3f} | {own:7.3f} | {len(found):3} | groups {groups} | {kernel}: {text}"[:200])


def child(options: argparse.Namespace) -> None:
    """Measure one side of one net, or both in turns, and print lines."""
    side, name = options.child.split(",")
    passes = Passes() if side == "regions" else None
    sides = {kind: Net(name, kind, options) for kind in (("native", "regions") if side == "turns" else (side,))}
    for net in sides.values():
        net.inference()
        net.training()
    if options.build:
        return
    if side == "turns":
        from clgraft.plugins.command_line.bench.timing import compare

        for action in ("inference", "training"):
            found = compare({kind: getattr(net, action) for kind, net in sides.items()}, 2 * options.seconds, 3)
            print(f"  in turns, {action}: " + ", ".join(f"{k} {1e3 * t.median:.1f} ms" for k, t in found.items()))
        return
    if side == "native":
        print(f"  MXNet computes with {peer_threads.read_back(peers.known()['mxnet'])} threads")
    calls = Calls()
    for action in ACTIONS:
        calls.reset()
        text = measured(getattr(sides[side], action), options.seconds)
        print(f"  {side} alone, {action}: {text}{calls.medians()}", flush=True)
    if passes is not None and options.rows:
        from clgraft import core

        account(passes, core.context(), options.rows)


def run(options: argparse.Namespace, side: str, name: str, count: int | None, folder: str) -> subprocess.Popen[bytes]:
    """Start a child process for one side of a net, on so many cores; the folder is for what the runtime writes."""
    words = [f"--child={side},{name}", f"--batch={options.batch}", f"--size={options.size}"]
    words += [f"--seconds={options.seconds}", f"--rows={options.rows}"] + ["--build"] * options.build
    if count is None:
        bound: dict[str, Any] = {"env": {**os.environ, **options.chosen}}
    else:
        bound = threads.bound(threads.cores()[:count])
    if side == "regions" and not options.build:
        file = Path(folder, f"{name}-{count}")
        file.touch()
        bound["env"].update(CLGRAFT_VERBOSE="run", CLGRAFT_VERBOSE_FILE=str(file))
    if side == "native":  # MXNet's default, which `clgraft.mxnet_ops` changes
        bound["env"].setdefault("GOMP_SPINCOUNT", MXNETS_SPINCOUNT)
    return subprocess.Popen([sys.executable, __file__, *words], **bound)


def main() -> None:
    """Measure what the command line says."""
    options = parse()
    options.chosen = {}
    if options.child:
        child(options)
        return
    with tempfile.TemporaryDirectory(prefix="clgraft-cores-") as folder:
        show(options, folder)


def show(options: argparse.Namespace, folder: str) -> None:
    """Print everything for each number of cores, or only build kernels."""
    if options.build:
        for process in [run(options, "regions", name, None, folder) for name in options.nets]:
            process.wait()
        return
    counts: list[int | None] = [int(word) for word in options.threads.split(",")] if options.threads else [None]
    parts = options.parts.split(",")
    if options.nets and None in counts:
        choice = best("mxnet", registry.environment())
        options.chosen = choice.environment
        print(f"MXNet: {choice}")
    for count in counts:
        print(f"== {count or len(threads.cores())} cores", flush=True)
        if "machine" in parts:
            bound = {} if count is None else threads.bound(threads.cores()[:count])
            subprocess.run([sys.executable, Path(__file__).with_name("launch_costs.py")], check=False, **bound)
        for name in announced(options.nets):
            print(f"{name}, batch {options.batch}", flush=True)
            for side in ("native", "regions", "turns"):
                if side in parts:
                    run(options, side, name, count, folder).wait()


if __name__ == "__main__":
    main()
