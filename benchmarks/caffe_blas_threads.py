"""Measure whether OpenBLAS's threads slow down a half swapped net: `python benchmarks/caffe_blas_threads.py`.

After a product these threads stay awake for a while. Chains of six convolutions (64 to 64 channels, 3 x 3, 28 x 28,
batch 4, each followed by a ReLU) run with all layers ours, with all convolutions Caffe's, and with every second
convolution Caffe's under several settings of OpenBLAS, each in a separate process. A row is milliseconds: of our
convolutions, forward and backward, of Caffe's, and of our ReLUs after one of ours and after one of Caffe's.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from progress import announced, first

DEPTH, SECONDS, WARM = 6, 2.0, 2
CASES: dict[str, tuple[tuple[int, ...], dict[str, str]]] = {
    "all ours": ((), {}),
    "every second one Caffe's": ((1, 3, 5), {}),
    "the same, OPENBLAS_THREAD_TIMEOUT=4": ((1, 3, 5), {"OPENBLAS_THREAD_TIMEOUT": "4"}),
    "the same, OPENBLAS_NUM_THREADS=1": ((1, 3, 5), {"OPENBLAS_NUM_THREADS": "1"}),
    "convolutions Caffe's": (tuple(range(DEPTH)), {}),
}


def measure(native: tuple[int, ...]) -> dict[str, float]:
    """Return the median times of the layers of one net."""
    sys.path.append(str(Path(__file__).resolve().parent.parent))
    import numpy as np

    from tests.caffe_layers.caffe_nets import inputs, layer, load

    fields = 'convolution_param { num_output: 64 kernel_size: 3 pad: 1 weight_filler { type: "msra" } }'
    text = inputs({"z0": (4, 64, 28, 28)})
    for i in range(DEPTH):
        text += layer("Convolution", fields, ours=i not in native, name=f"c{i}", bottoms=[f"z{i}"], tops=[f"y{i}"])
        text += layer("ReLU", ours=True, name=f"r{i}", bottoms=[f"y{i}"], tops=[f"z{i + 1}"])
    net = load(text + "force_backward: true")
    net.blobs["z0"].data[...] = np.random.default_rng(0).standard_normal((4, 64, 28, 28))
    net.blobs[f"z{DEPTH}"].diff[...] = 1
    names = list(net._layer_names)
    steps = [(net._forward, i) for i in range(len(names))] + [(net._backward, i) for i in reversed(range(len(names)))]
    times: list[list[float]] = [[] for _ in steps]
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        for kept, (run, i) in zip(times, steps):
            start = time.perf_counter()
            run(i, i)
            kept.append(time.perf_counter() - start)
    found: dict[str, list[float]] = {}
    for kept, (run, i) in zip(times, steps):
        if names[i][0] not in "cr":
            continue
        owner = "Caffe's" if int(names[i][1]) in native else "ours"
        direction = "forward" if run == net._forward else "backward"
        key = f"{owner} {direction}" if names[i][0] == "c" else f"relu after {owner} {direction}"
        found.setdefault(key, []).append(1e3 * statistics.median(kept[WARM:]))
    return {key: statistics.mean(values) for key, values in found.items()}


def main() -> None:
    """Print a row per case, twice, to reveal disturbed rows."""
    columns = [f"{owner} {way}" for owner in ("ours", "Caffe's") for way in ("forward", "backward")]
    columns += ["relu after ours forward", "relu after Caffe's forward"]
    print(
        f"{'':36}"
        + "".join(f"{column.replace(' forward', ' fwd').replace('backward', 'bwd'):>24}" for column in columns)
    )
    for _ in range(2):
        for name, (native, settings) in announced(CASES.items(), first):
            command = [sys.executable, __file__, json.dumps(native)]
            done = subprocess.run(command, env={**os.environ, **settings}, stdout=subprocess.PIPE, check=True)
            found = json.loads(done.stdout.decode().splitlines()[-1])
            row = "".join(f"{found[column]:24.3f}" if column in found else f"{'-':>24}" for column in columns)
            print(f"{name:36}" + row, flush=True)


if __name__ == "__main__":
    os.environ.setdefault("PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION", "python")
    os.environ.setdefault("GLOG_minloglevel", "2")
    if len(sys.argv) > 1:
        print(json.dumps(measure(tuple(json.loads(sys.argv[1])))))
    else:
        main()
