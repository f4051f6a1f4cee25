"""Inference of ONNX nets exported from torchvision: clgraft in turns with ONNX Runtime, then with OpenVINO.

    python benchmarks/onnx_nets.py --device pocl
    python benchmarks/onnx_nets.py mobilenet_v2 --batch 1 --cpu-time

Needs torch, torchvision, onnx, onnxruntime and openvino, or those of --peers. Weights are random. Each peer has a
process of its own, and the faster of its default number of threads and all processors. With --cpu-time the figure is
the processor time of all threads of a run, which other programs on the machine disturb less; ONNX Runtime's threads
then sleep while they wait. Else the floor of clgraft's run is printed, too, the time that the device's measured peaks
allow for it, and its share of the time. With --precision clgraft and OpenVINO compute products in 16 bits.
The nets of the onnx package are those of `clgraft bench --nets`.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from timing import compare, geometric_mean, keep, restarted, row

from clgraft import core
from clgraft.core import settings
from clgraft.core.planning.precision import FLOAT32
from clgraft.plugins.command_line import arguments, terminal
from clgraft.plugins.command_line.bench import floors
from clgraft.plugins.onnx import Session
from clgraft.plugins.onnx.bench_runtimes import onnxruntime, openvino

NETS = ("resnet50", "vgg16", "mobilenet_v2", "efficientnet_b0", "densenet121", "squeezenet1_0")
PEERS = {"onnxruntime": "ONNX Runtime", "openvino": "OpenVINO"}
SIZE = 224
ALLOWED = {"": 1e-4, **dict.fromkeys(settings.MIXED, 0.1)}  # differences, of the largest result


def exported(name: str, folder: Path) -> str:
    """Return the path of a net's model, exported when it is first needed."""
    from tests.plugins.onnx import torch_nets

    path = folder / f"{name}.onnx"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        torch_nets.export(name, path, size=SIZE)
    return str(path)


def contenders(path: str, options: argparse.Namespace) -> dict[str, Callable[[], Any]]:
    """Return each side's run of a model, after a first run whose results agree."""
    session = Session(path, precision=options.precision or None)
    model, batch = onnx.load(path), options.batch
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = batch  # OpenVINO plans for fixed sizes
    given = {"x": np.random.default_rng(3).standard_normal((batch, 3, SIZE, SIZE)).astype(np.float32)}
    (peer,) = options.peers
    if peer == "openvino":
        runtime = openvino(model, precision=options.precision or FLOAT32)
    else:
        runtime = onnxruntime(model, spinning=not options.cpu_time)
    calls: dict[str, Callable[[], Any]] = {
        "clgraft": lambda: session.run(given)["y"],
        PEERS[peer]: lambda: runtime(given)[0],
    }
    ours, theirs = (np.array(call()) for call in calls.values())
    error = np.abs(ours - theirs).max() / np.abs(theirs).max()
    assert error < ALLOWED[options.precision], f"{path}: clgraft is {error:.1e} away from {PEERS[peer]}"
    return calls


def processor_times(calls: dict[str, Callable[[], Any]], seconds: float, least: int) -> dict[str, float]:
    """Return the median processor time of each side's run, in turns."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    end = time.perf_counter() + seconds
    while min(map(len, times.values())) < least or time.perf_counter() < end:
        for name, call in calls.items():
            call()
            begin = time.process_time()
            call()
            times[name].append(time.process_time() - begin)
    return {name: statistics.median(found) for name, found in times.items()}


def main() -> None:
    """Print a table with a row for each net."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nets", nargs="*", default=NETS, help=f"by default {' '.join(NETS)}")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--device", help="OpenCL device (default: CLGRAFT_DEVICE)")
    parser.add_argument("--seconds", type=float, default=20.0, help="for each net")
    parser.add_argument("--repeats", type=int, default=5, help="the least number of runs of each side")
    parser.add_argument("--cpu-time", action="store_true", help="processor time of all threads instead of time passed")
    parser.add_argument("--peers", type=arguments.words, default=list(PEERS), help=f"of {','.join(PEERS)}")
    parser.add_argument("--precision", default="", choices=settings.MIXED, help="of products (default: float32)")
    parser.add_argument("--json", type=Path, help="keep all figures, of several peers in FILE-PEER")
    parser.add_argument("--folder", type=Path, help="where exported models are kept")
    options = parser.parse_args()
    if len(options.peers) > 1:
        for peer in options.peers:
            more = [f"--peers={peer}"]
            if options.json:
                more.append(f"--json={options.json.with_name(f'{options.json.stem}-{peer}{options.json.suffix}')}")
            subprocess.run([sys.executable, *sys.argv, *more], check=True)
        return
    if options.precision and options.peers != ["openvino"]:
        parser.error("a precision is for clgraft and OpenVINO: add --peers openvino")
    if options.device:
        os.environ["CLGRAFT_DEVICE"] = options.device
    (peer,) = options.peers
    threads = restarted(peer)
    print(f"{PEERS[peer]}: {threads}")
    device = core.context(options.device).device
    print(
        f"{device.platform}, {device.name}, {device.compute_units} compute units; batch {options.batch}, {SIZE} pixels"
    )
    print(
        f"milliseconds, {'processor time' if options.cpu_time else 'time passed'}, medians; peer / clgraft in brackets"
    )
    ratios: dict[str, list[float]] = {}
    rows = []
    total = len(options.nets)
    with tempfile.TemporaryDirectory() as scratch, terminal.Progress(sys.stdout, total, still=True) as progress:
        for done, name in enumerate(options.nets):
            progress.show(f"{name} against {PEERS[peer]}", done)
            if not progress.drawn:
                print(f"measuring {name}, {done + 1} of {total}", file=sys.stderr, flush=True)
            path = exported(name, options.folder or Path(scratch))
            calls = contenders(path, options)
            floor = ""
            if options.cpu_time:
                times = processor_times(calls, options.seconds, options.repeats)
            else:
                times = {n: t.median for n, t in compare(calls, options.seconds, options.repeats).items()}
                least = floors.of(calls["clgraft"])
                floor = f" (floor {1e3 * least:.1f}, {least / times['clgraft']:.0%})"
            ours = times["clgraft"]
            rows.append(row("nets", name, "inference", peer, times[PEERS[peer]], ours))
            texts = [f"{side} {1e3 * t:.1f} ({t / ours:.2f})" for side, t in times.items() if side != "clgraft"]
            progress.print(f"{name}: clgraft {1e3 * ours:.1f}{floor}, {', '.join(texts)}")
            for side, t in times.items():
                ratios.setdefault(side, []).append(t / ours)
            del calls
            gc.collect()
    for side, found in ratios.items():
        if side != "clgraft":
            print(f"{side} / clgraft: geometric mean {geometric_mean(found):.2f}, least {min(found):.2f}")
    release = importlib.import_module(peer).__version__.partition("-")[0]  # without a build's name
    version = f"{PEERS[peer]} {release}"
    version += f", {options.precision}" * bool(options.precision)
    keep(str(options.json or ""), core.context(options.device), rows, {peer: version}, {peer: threads})


if __name__ == "__main__":
    sys.path.append(str(Path(__file__).resolve().parent.parent))
    main()
