"""Measures what a layer costs beyond its kernel: a chain of ReLUs on few values, as Python layers and as C++ layers.

    python benchmarks/caffe_call_overhead.py --device intel

Microseconds of processor time of the calling thread for each layer of a forward pass, medians of interleaved runs. The
last column is a run of the same plan by itself, from Python: the kernel with the C runtime.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

os.environ.setdefault("GLOG_minloglevel", "2")

import numpy as np

LAYERS, SIZE = 200, 16


def main() -> None:
    """Print one line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", help="as CLGRAFT_DEVICE; by default what that holds")
    parser.add_argument("--runs", type=int, default=31)
    options = parser.parse_args()
    if options.device:
        os.environ["CLGRAFT_DEVICE"] = options.device
    import caffe

    import clgraft.caffe_layers.native  # noqa: F401  which loads the C++ layers
    from clgraft import core
    from clgraft.caffe_layers.swap import swap_net
    from clgraft.plugins.caffe.bench_layers import load

    text = f'layer {{ name: "x0" type: "Input" top: "x0" input_param {{ shape {{ dim: {SIZE} }} }} }}\n'
    for i in range(LAYERS):
        text += f'layer {{ name: "r{i}" type: "ReLU" bottom: "x{i}" top: "x{i + 1}" }}\n'
    nets = {
        "Caffe's own": load(text, caffe.TEST),
        "Python layers": load(swap_net(text)[0], caffe.TEST),
        "C++ layers": load(swap_net(text, native=True)[0], caffe.TEST),
    }
    plan = core.context().plan(f"pointwise x0[{SIZE}] : y0 = x0 > 0 ? x0 : 0;")
    arrays = [np.zeros(SIZE, np.float32) for _ in range(2)]
    buffers = [core.Buffer(array.ctypes.data, array.nbytes, "float32") for array in arrays]

    def alone() -> None:
        for _ in range(LAYERS):
            plan.execute(buffers)

    actions = {**{name: net.forward for name, net in nets.items()}, "plan alone": alone}
    times: dict[str, list[float]] = {name: [] for name in actions}
    for run in range(options.runs + 2):
        for name, action in actions.items():
            began = time.thread_time()
            action()
            if run >= 2:
                times[name].append(1e6 * (time.thread_time() - began) / LAYERS)
    print(core.context().device)
    print("  ".join(f"{name} {statistics.median(own):.2f} us" for name, own in times.items()))


if __name__ == "__main__":
    main()
