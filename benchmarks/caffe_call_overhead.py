"""Measures what a layer costs beyond its kernel: a chain of ReLUs on few values, as Python layers and as C++ layers.

    python benchmarks/caffe_call_overhead.py --device intel

Microseconds of processor time of the calling thread for each layer of a forward pass, medians of interleaved runs. The
last column is a run of the same plan by itself, from Python: the kernel with the C runtime. Then a training step
(forward and backward) of the digits demo's net, in milliseconds of processor time of all threads.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("GLOG_minloglevel", "2")

import numpy as np
from progress import say

LAYERS, SIZE = 200, 16
DEMO = Path(__file__).resolve().parents[1] / "examples" / "digits"
BATCH = (64, 1, 8, 8)  # as in the demo


def interleaved(actions: dict[str, Any], runs: int, clock: Callable[[], float]) -> dict[str, float]:
    """Return the median seconds of each action by a clock."""
    times: dict[str, list[float]] = {name: [] for name in actions}
    for run in range(runs + 2):
        for name, action in actions.items():
            began = clock()
            action()
            if run >= 2:
                times[name].append(clock() - began)
    return {name: statistics.median(own) for name, own in times.items()}


def main() -> None:
    """Print the times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", help="as CLGRAFT_DEVICE; by default what that holds")
    parser.add_argument("--runs", type=int, default=31)
    parser.add_argument("--json", default="", metavar="FILE", help="keep the figures")
    options = parser.parse_args()
    if options.device:
        os.environ["CLGRAFT_DEVICE"] = options.device
    import caffe
    from timing import keep, row

    import clgraft.caffe_layers.native  # noqa: F401  which loads the C++ layers
    from clgraft import core
    from clgraft.caffe_layers.swap import swap_net
    from clgraft.plugins.caffe.bench_layers import load

    text = f'layer {{ name: "x0" type: "Input" top: "x0" input_param {{ shape {{ dim: {SIZE} }} }} }}\n'
    for i in range(LAYERS):
        text += f'layer {{ name: "r{i}" type: "ReLU" bottom: "x{i}" top: "x{i + 1}" }}\n'

    def three(text: str, phase: int) -> dict[str, Any]:
        return {
            "Caffe's own": load(text, phase),
            "Python layers": load(swap_net(text)[0], phase),
            "C++ layers": load(swap_net(text, native=True)[0], phase),
        }

    def step(net: Any) -> None:
        net.forward()
        net.clear_param_diffs()
        net.backward()

    plan = core.context().plan(core.PointwiseProblem(((SIZE,),), "y0 = x0 > 0 ? x0 : 0;"))
    arrays = [np.zeros(SIZE, np.float32) for _ in range(2)]
    buffers = [core.Buffer(array.ctypes.data, array.nbytes, "float32") for array in arrays]

    bound = plan.bind(buffers)

    def alone() -> None:
        for _ in range(LAYERS):
            plan.run_bound(bound)

    actions: dict[str, Any] = {name: net.forward for name, net in three(text, caffe.TEST).items()}
    say("a layer")
    found = interleaved({**actions, "the plan alone": alone}, options.runs, time.thread_time)
    print(core.context().device)
    print("a layer: ", "  ".join(f"{name} {1e6 * each / LAYERS:.2f} us" for name, each in found.items()))
    rows = [row("calls", f"a layer: {name}", "forward", "", 0.0, each / LAYERS) for name, each in found.items()]

    sys.path.insert(0, str(DEMO))
    from train_caffe import digits_prototxt

    actions = {}
    for name, net in three(digits_prototxt(BATCH, normed=True), caffe.TRAIN).items():
        net.blobs["data"].data[...] = np.random.default_rng(0).standard_normal(BATCH)
        actions[name] = partial(step, net)
    say("a step of the demo")
    found = interleaved(actions, options.runs, time.process_time)
    print("the demo:", "  ".join(f"{name} {1e3 * each:.2f} ms" for name, each in found.items()))
    rows += [row("calls", f"the demo's step: {name}", "training", "", 0.0, each) for name, each in found.items()]
    keep(options.json, core.context(), rows, {"caffe": f"Caffe {caffe.__version__}"})


if __name__ == "__main__":
    main()
