"""Whether OpenBLAS's threads slow our layers down in a half swapped net: `python benchmarks/caffe_blas_threads.py`.

After a product those threads stay awake for a while. Chains of six convolutions (64 to 64 channels, 3 x 3, 28 x 28,
batch 4, each with a ReLU behind it) run with all layers ours, with all native, and with every second convolution native
under several settings of OpenBLAS, each in a process of its own. A row is milliseconds: of our convolutions, forward
and backward, of the native ones, and of our ReLUs right behind ours and right behind native ones.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

DEPTH, SECONDS, WARM = 6, 2.0, 2
CASES: dict[str, tuple[tuple[int, ...], dict[str, str]]] = {
    "all ours": ((), {}),
    "every second one native": ((1, 3, 5), {}),
    "the same, OPENBLAS_THREAD_TIMEOUT=4": ((1, 3, 5), {"OPENBLAS_THREAD_TIMEOUT": "4"}),
    "the same, OPENBLAS_NUM_THREADS=1": ((1, 3, 5), {"OPENBLAS_NUM_THREADS": "1"}),
    "convolutions native": (tuple(range(DEPTH)), {}),
}


def measure(native: tuple[int, ...]) -> dict[str, float]:
    """Give the medians of one net's layers."""
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
        owner = "native" if int(names[i][1]) in native else "ours"
        direction = "forward" if run == net._forward else "backward"
        key = f"{owner} {direction}" if names[i][0] == "c" else f"relu behind {owner} {direction}"
        found.setdefault(key, []).append(1e3 * statistics.median(kept[WARM:]))
    return {key: statistics.mean(values) for key, values in found.items()}


def main() -> None:
    """Print a row per case, twice, so that a disturbed row shows."""
    columns = [f"{owner} {way}" for owner in ("ours", "native") for way in ("forward", "backward")]
    columns += ["relu behind ours forward", "relu behind native forward"]
    print(
        f"{'':36}"
        + "".join(f"{column.replace(' forward', ' fwd').replace('backward', 'bwd'):>24}" for column in columns)
    )
    for _ in range(2):
        for name, (native, settings) in CASES.items():
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
