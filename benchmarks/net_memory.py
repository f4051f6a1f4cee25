"""Memory that models of MXNet's zoo take on a processor, with regions and by MXNet's own operators.

    python benchmarks/net_memory.py resnet18_v1 resnet50_v1 mobilenet1.0 --device intel --json FILE

Each model infers, or trains by `sgd`, in a process of its own. Its memory is the most that was resident during three
calls, without what was resident when the model was not made yet: parameters, gradients and histories are in it, as well
as compiled kernels. Times of the rows are of the last call alone, and not to be compared.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from progress import announced
from timing import keep, row

KINDS = {"native": "mxnet", "regions": "clgraft"}
DIRECTIONS = {"inference": "infer", "training": "train"}
CALLS = 3


def resident(name: str) -> int:
    """Return an entry of the process's status in bytes: VmRSS, what is resident, or VmHWM, the most that was."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(name))


def measure(net: str, kind: str, direction: str, options: argparse.Namespace) -> tuple[float, float]:
    """Return the memory of a model in bytes, and the seconds of a call."""
    from regions import Model

    from clgraft import core

    if kind != "native":
        core.context()
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # VmHWM starts anew
    before = resident("VmRSS")
    with tempfile.TemporaryDirectory() as folder:
        model = Model(net, kind, options, os.path.join(folder, "net.params"))
    for _ in range(CALLS):
        start = time.perf_counter()
        getattr(model, DIRECTIONS[direction])()
        seconds = time.perf_counter() - start
    return float(resident("VmHWM") - before), seconds


def main() -> None:
    """Print a line for each net and direction."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nets", nargs="*", default=["resnet18_v1", "mobilenet1.0"], help="names of the model zoo")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--size", type=int, default=224, help="of the images")
    parser.add_argument("--device", help="as CLGRAFT_DEVICE; by default what that holds")
    parser.add_argument("--json", default="", metavar="FILE", help="keep the figures")
    parser.add_argument("--one", nargs=3, metavar=("NET", "KIND", "DIRECTION"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.optimizer, options.precision = "sgd", "float32"
    if options.device:
        os.environ["CLGRAFT_DEVICE"] = options.device
    import clgraft.mxnet_ops  # noqa: F401  # before MXNet

    if options.one:
        print(json.dumps(measure(*options.one, options)))
        return
    rows = []
    for net in announced(options.nets):
        for direction in DIRECTIONS:
            found = {}
            for kind in KINDS:
                command = [sys.executable, __file__, "--one", net, kind, direction]
                command += ["--batch", str(options.batch), "--size", str(options.size)]
                answer = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
                found[kind] = json.loads(answer.splitlines()[-1])
            (theirs, native), (own, ours) = found["native"], found["regions"]
            print(f"{net} {direction}: {own / 1e9:.2f} GB, MXNet {theirs / 1e9:.2f} GB", flush=True)
            name = f"{net} batch {options.batch}"
            rows.append(row("memory", name, direction, "mxnet", native, ours, memory=own, native_memory=theirs))
    import mxnet

    from clgraft import core

    keep(options.json, core.context(), rows, {"mxnet": f"MXNet {mxnet.__version__}"})


if __name__ == "__main__":
    main()
