"""Measure what a first run costs: `python benchmarks/first_minute.py [net resnet50_v1] [operators] [shapes]`.

Every row is a new process, first with empty caches, then again with the caches that the first one filled:

net NAME       a net of MXNet's model zoo, swapped, one image; `--training` runs a training step
net torch:NAME a net of torchvision in `torch.compile`, two images of 64 x 64 pixels, then three; `--backend aot_eager`
               shows what PyTorch takes for the same, `--dynamic` marks the number of images as one that changes
operators      single operators in the core, each in a process of its own
model FILE     `clgraft run FILE`, from the start of the process to its end; with `--weights` where they are a file
shapes [N]     N random shapes of several operators (default: 400): programs, plans and memory that are kept
breakdown NAME every program that the net's first run builds, the longest first

A row has the programs that were built, the wall seconds and the CPU seconds of all threads from the call to its result.
CLGRAFT_DEVICE chooses the device. `--json FILE` writes the rows as well.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from progress import announced, first

OPERATORS = {
    "conv 3x3": "conv forward n1 ic64 ih56 iw56 oc64 kh3 kw3 ph1 pw1",
    "conv 1x1": "conv forward n1 ic64 ih56 iw56 oc256 kh1 kw1",
    "conv 7x7/2": "conv forward n1 ic3 ih224 iw224 oc64 kh7 kw7 sh2 sw2 ph3 pw3",
    "depthwise": "conv forward n1 g32 ic32 ih56 iw56 oc32 kh3 kw3 ph1 pw1",
    "dense": "dense forward n1 i512 o1000 b1",
    "pooling": "pool max forward n1 c64 ih56 iw56 kh3 kw3 sh2 sw2 ph1 pw1",
    "batch norm": "batchnorm forward_inference n1 c64 s3136",
    "softmax": "softmax forward n1 c1000 s1",
    "add": "pointwise x0[1,64,56,56] x1[1,64,56,56] : y0 = x0 + x1;",
    "add, broadcast": "pointwise x0[1,64,56,56] x1[64,1,1] : y0 = x0 + x1;",
}


def measured(call: Callable[[], Any]) -> dict[str, Any]:
    """Return programs, seconds and CPU seconds of a call."""
    from clgraft.core.runtime import building

    before, start, cpu_start = building.built[0], time.perf_counter(), time.process_time()
    call()
    return {
        "programs": building.built[0] - before,
        "seconds": time.perf_counter() - start,
        "cpu": time.process_time() - cpu_start,
    }


def run_net(options: argparse.Namespace, name: str) -> dict[str, Any]:
    """Run a net once."""
    source, found, net = name.rpartition(":")
    if found and source != "torch":
        raise SystemExit(f"[first_minute] got net {name}, expected a name of MXNet's model zoo, or torch:NAME")
    if source:
        return run_torch(net, options.training, options.backend, options.dynamic)
    return run_mxnet(name, options.training)


def run_torch(name: str, training: bool, backend: str, dynamic: bool) -> dict[str, Any]:
    """Compile a net and run it once, and once with another batch size."""
    import torch

    from clgraft import core
    from clgraft.plugins.torch.bench_models import of_torchvision

    model = torch.compile(of_torchvision(name).train(training), backend=backend)
    core.context()

    def call(batch: int) -> None:
        images = torch.randn(batch, 3, 64, 64)
        if dynamic:
            torch._dynamo.mark_dynamic(images, 0)
        with torch.set_grad_enabled(training):
            result = model(images)
        if training:
            result.square().mean().backward()

    found = measured(lambda: call(2))
    return {**found, "seconds of a new batch size": measured(lambda: call(3))["seconds"]}


def run_mxnet(name: str, training: bool) -> dict[str, Any]:
    """Run a swapped net once."""
    import clgraft.mxnet_ops  # isort: skip
    import mxnet as mx

    from clgraft import core

    net = mx.gluon.model_zoo.vision.get_model(name)
    net.initialize()
    image = mx.nd.random.normal(shape=(1, 3, 224, 224))
    net(image)  # MXNet infers shapes
    clgraft.mxnet_ops.swap_block(net)
    net.hybridize(static_alloc=True)
    core.context()
    mx.nd.waitall()

    def call() -> None:
        if training:
            with mx.autograd.record():
                output = net(image)
            output.backward()
        else:
            net(image)
        mx.nd.waitall()

    return measured(call)


def run_operator(text: str) -> dict[str, Any]:
    """Run a problem once, its planning included."""
    from clgraft import core
    from clgraft.plugins.command_line import lone_run

    core.context()
    problem = core.parse(text)
    return measured(lambda: lone_run.bind(problem)())


def run_model(file: str, weights: str | None) -> dict[str, Any]:
    """Run the command on a model; return the seconds since this process began."""
    from clgraft.core.runtime import building
    from clgraft.plugins.command_line.main import main

    if main(["run", file, *(["--weights", weights] if weights else [])]):
        raise SystemExit(1)
    with open("/proc/self/stat") as stat:
        began = int(stat.read().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
    seconds = time.clock_gettime(time.CLOCK_BOOTTIME) - began
    return {"programs": building.built[0], "seconds": seconds, "cpu": time.process_time()}


def run_shapes(count: int) -> dict[str, Any]:
    """Plan and run random shapes; return also what is kept, and the growth of the process's memory in MiB."""
    import numpy as np

    from clgraft import core
    from clgraft.plugins.command_line import lone_run

    rng = np.random.default_rng(1)
    context = core.context()

    def resident() -> float:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize() / 2**20

    def call() -> None:
        for number in range(count):
            n, c, k, size = (int(value) for value in rng.integers(1, 24, 4))
            text = (
                f"conv forward n{n} ic{c} ih{size + 2} iw{size + 2} oc{k} kh3 kw3",
                f"dense forward n{n} i{c} o{k}",
                f"pointwise x0[{n},{c},{size}] x1[{c},1] : y0 = x0 * x1;",
                f"softmax forward n{n} c{c} s{size}",
            )[number % 4]
            lone_run.bind(core.parse(text))()

    before = resident()
    found = measured(call)
    return {
        **found,
        "plans kept": len(context.problems()),
        "programs kept": len(context.programs),
        "MiB": resident() - before,
    }


def run_breakdown(options: argparse.Namespace, name: str) -> dict[str, Any]:
    """Run a net once and print the programs that it builds."""
    from clgraft.core.runtime import program_cache

    rows: list[tuple[float, float, str]] = []
    real, names = program_cache.build, []
    handler = logging.Handler()
    handler.emit = lambda record: names.append(record.args[0] if record.args else "")  # type: ignore[method-assign]
    logging.getLogger("clgraft").addHandler(handler)
    logging.getLogger("clgraft").setLevel(logging.DEBUG)

    def build(*arguments: Any) -> Any:
        start, cpu_start = time.perf_counter(), time.process_time()
        program = real(*arguments)
        defines = " ".join(re.findall(r"^#define (\w+ -?\d+)$", arguments[2], re.M))
        name = names[-1] if names else "a probe"
        rows.append((time.process_time() - cpu_start, time.perf_counter() - start, f"{name}: {defines}"))
        return program

    program_cache.build = build
    found = run_net(options, name)
    for cpu, seconds, what in sorted(rows, reverse=True):
        print(f"  {cpu:6.2f} CPU s {seconds:6.2f} s  {what}")
    return found


def main() -> int:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("net", "operators", "model", "shapes", "breakdown"))
    parser.add_argument("name", nargs="?", default="", help="of a net, a file, or the number of shapes")
    parser.add_argument("--weights", metavar="FILE", help="of a model: a .caffemodel or .params")
    parser.add_argument("--training", action="store_true", help="a training step instead of inference")
    parser.add_argument("--backend", default="clgraft", help="of torch.compile")
    parser.add_argument("--dynamic", action="store_true", help="mark PyTorch's batch size as one that changes")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--once", metavar="TEXT", help=argparse.SUPPRESS)
    options = parser.parse_args()
    name = options.name or ("400" if options.what == "shapes" else "resnet50_v1")
    if options.once is not None:
        runs = {
            "net": lambda: run_net(options, name),
            "breakdown": lambda: run_breakdown(options, name),
            "operators": lambda: run_operator(options.once),
            "model": lambda: run_model(name, options.weights),
            "shapes": lambda: run_shapes(int(name)),
        }
        print(json.dumps(runs[options.what]()))
        return 0
    rows = []
    cases = OPERATORS if options.what == "operators" else {f"{options.what} {name}": ""}
    for title, text in announced(cases.items(), first):
        with tempfile.TemporaryDirectory() as folder:
            environment = {**os.environ, "CLGRAFT_CACHE": f"{folder}/clgraft", "POCL_CACHE_DIR": f"{folder}/pocl"}
            for caches in ("empty caches", "full caches"):
                command = [sys.executable, __file__, *sys.argv[1:], "--once", text]
                done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, text=True)
                *lines, answer = done.stdout.splitlines()
                found = json.loads(answer)
                print(*lines, sep="\n", end="\n" if lines else "")
                more = {key: value for key, value in found.items() if key not in MEASURED}
                rest = ", ".join(f"{key} {value:.{2 if 'seconds' in key else 0}f}" for key, value in more.items())
                times = f"{found['seconds']:7.2f} s {found['cpu']:7.2f} CPU s"
                print(f"{title:22} {caches:12} {found['programs']:4} programs {times}  {rest}", flush=True)
                rows.append({"what": title, "caches": caches, **found})
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=2)
    return 0


MEASURED = ("programs", "seconds", "cpu")

if __name__ == "__main__":
    sys.exit(main())
