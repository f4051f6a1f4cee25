"""Measure what the first run of a swapped net costs: `python benchmarks/first_use.py [resnet18_v1] [--training]`.

A net of MXNet's model zoo runs once on one image in a new process, first with empty caches, then again with the caches
that the first process filled. A row has the programs in clgraft's cache, and the seconds and CPU seconds of all threads
from the first call to its result. CLGRAFT_DEVICE chooses the device.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def run(name: str, training: bool) -> str:
    """Run a swapped net once; return the seconds and CPU seconds of the call."""
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
    start, cpu_start = time.perf_counter(), time.process_time()
    if training:
        with mx.autograd.record():
            output = net(image)
        output.backward()
    else:
        net(image)
    mx.nd.waitall()
    return f"{time.perf_counter() - start:8.1f} s {time.process_time() - cpu_start:8.1f} CPU s"


def main() -> int:
    """Print a row with empty caches and one with full caches."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("net", nargs="?", default="resnet18_v1", help="of Gluon's model zoo (default: resnet18_v1)")
    parser.add_argument("--training", action="store_true", help="a training step instead of inference")
    parser.add_argument("--once", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.once:
        print(run(options.net, options.training))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        for row in ("empty caches", "full caches"):
            environment = {**os.environ, "CLGRAFT_CACHE": f"{folder}/clgraft", "POCL_CACHE_DIR": f"{folder}/pocl"}
            command = [sys.executable, __file__, options.net, "--once", *(["--training"] if options.training else [])]
            done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, text=True)
            programs = sum(1 for _ in Path(folder, "clgraft", "programs").glob("*"))
            print(f"{row:14} {programs:4} programs {done.stdout.splitlines()[-1]}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
