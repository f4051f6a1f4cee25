"""Times whole nets by Caffe's own command, with its own layers and with clgraft's in their place, and without Caffe.

    python benchmarks/caffe_time.py resnet18 mobilenet --batch 8 --device pocl --session

Runs `caffe time` and `clgraft caffe time` in turns, each in a process of its own, so that no side's idle threads take
the other one's cores. Prints the medians of Caffe's averages: forward, backward, and both; and which layers stay
Caffe's own. With `--session` a third process computes the net without Caffe: a run of a session, and a step of a
trainer with SGD and momentum, which is more than the two passes that Caffe times; backward is their difference. Caffe
has the faster of its default number of threads and all processors. Needs the command `caffe`, pycaffe and what the C++
layers need (docs/caffe.md).
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("GLOG_minloglevel", "2")

AVERAGE = re.compile(r"Average (Forward pass|Backward pass|Forward-Backward): ([0-9.e+]+) ms")
DIRECTIONS = {"Forward pass": "inference", "Backward pass": "backward", "Forward-Backward": "training"}
OURS, SESSION = "clgraft", "session"
SIDES = {
    "Caffe": ["caffe"],
    OURS: [sys.executable, "-m", "clgraft.plugins.command_line", "caffe"],
    SESSION: [sys.executable, __file__],
}


def parse() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nets", nargs="*", default=["resnet18", "mobilenet"], help="of `clgraft bench --nets`")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--size", type=int, default=224, help="of the images")
    parser.add_argument("--iterations", type=int, default=10, help="of each process")
    parser.add_argument("--runs", type=int, default=5, help="processes of each side")
    parser.add_argument("--json", default="", metavar="FILE", help="keep the figures")
    parser.add_argument("--session", action="store_true", help="time the net without Caffe too")
    parser.add_argument("--device", help="as CLGRAFT_DEVICE; by default what that holds")
    return parser.parse_args()


def time_session(model: Path, iterations: int) -> None:
    """Time a net without Caffe, and print its averages as `caffe time` does."""
    import time

    import numpy as np

    from clgraft.caffe_layers.nets.net import CaffeNet, read_net
    from clgraft.core.model import NetSession

    net = read_net(model)
    whole = CaffeNet(net, whole=True, rng=np.random.default_rng(0))
    shapes = {port.name: port.usual for port in whole.inputs}
    whole.fill(shapes)
    rng = np.random.default_rng(1)
    arrays = {name: rng.random(shape, np.float32) for name, shape in shapes.items() if name != "label"}
    arrays["label"] = rng.integers(0, 10, shapes["label"]).astype(np.float32)
    session = NetSession(CaffeNet(net, whole.weights(), whole=True))
    session.run(arrays)
    found = [_average(lambda: session.run(arrays), iterations, time.perf_counter)]
    trainer = session.trainer("sgd", lr=1e-4, momentum=0.9)
    trainer.step(arrays)
    found.append(_average(lambda: trainer.step(arrays), iterations, time.perf_counter))
    forward, both = found
    times = {"Forward pass": forward, "Backward pass": both - forward, "Forward-Backward": both}
    for name, milliseconds in times.items():
        print(f"Average {name}: {milliseconds:.6f} ms", file=sys.stderr)


def _average(call: Callable[[], object], iterations: int, clock: Callable[[], float]) -> float:
    """Return the mean time of a call in milliseconds."""
    begin = clock()
    for _ in range(iterations):
        call()
    return 1e3 * (clock() - begin) / iterations


def average(side: str, model: Path, iterations: int, threads: dict[str, str]) -> tuple[dict[str, float], list[str]]:
    """Return Caffe's averages of one process in milliseconds, and what it says of layers that stay Caffe's own.

    Raises
    ------
    RuntimeError
        When the command fails; says what it printed.
    """
    command = [*SIDES[side], "time", "-model", str(model), "-iterations", str(iterations)]
    environment = {**os.environ, **threads, "GLOG_minloglevel": "0", "GLOG_logtostderr": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    found = {name: float(value) for name, value in AVERAGE.findall(done.stderr)}
    if done.returncode or len(found) != 3:
        reason = done.stderr[-2000:]
        raise RuntimeError(f"[caffe time] got exit code {done.returncode} of {side}, expected 0 and times:\n{reason}")
    return found, re.findall(r"clgraft: layer .* stays Caffe's own.*", done.stderr)


def caffe_and_blas() -> str:
    """Return Caffe's version and the library that multiplies for it, with the kernels that a variable makes it take."""
    said = subprocess.run(["caffe", "--version"], capture_output=True, text=True)
    version = re.search(r"version ([0-9.]+)", said.stdout + said.stderr)
    linked = subprocess.run(["ldd", shutil.which("caffe") or "caffe"], capture_output=True, text=True).stdout
    libraries = {name: os.path.realpath(path) for name, path in re.findall(r"(\S+) => (\S+)", linked)}
    names = ["Caffe" + f" {version[1]}" * bool(version)]
    openblas = next((path for name, path in libraries.items() if name.startswith("libopenblas")), "")
    if openblas:
        found = re.search(r"r([0-9.]+)\.so", openblas)
        names.append("OpenBLAS" + f" {found[1]}" * bool(found))
        kernels = os.environ.get("OPENBLAS_CORETYPE")
        names[-1] += f" ({kernels})" * bool(kernels)
    else:
        names += [Path(path).name for name, path in libraries.items() if "blas" in name]
    return ", ".join(names)


def main() -> None:
    """Print a line for each net and each of Caffe's averages."""
    options = parse()
    if options.device:
        os.environ["CLGRAFT_DEVICE"] = options.device
    from progress import announced
    from timing import best, keep, row

    from clgraft import core
    from clgraft.plugins import registry
    from clgraft.plugins.caffe.net_texts import NETS
    from clgraft.plugins.command_line.bench.peer_threads import Threads

    print(f"{core.context().device}, batch {options.batch}, {options.size} pixels; medians of {options.runs} processes")
    choice = best("caffe", registry.environment())
    print(f"Caffe: {choice}", flush=True)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in announced(options.nets):
            model = Path(folder) / f"{name}.prototxt"
            model.write_text(NETS[name](options.batch, True, options.size))
            _, kept = average("clgraft", model, 1, choice.environment)  # builds kernels
            print(*kept, sep="\n", end="\n" * bool(kept))
            sides = [side for side in SIDES if side != SESSION or options.session]
            runs: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
            if options.session:
                average(SESSION, model, 1, choice.environment)
            for _ in range(options.runs):
                for side, found in runs.items():
                    found.append(average(side, model, options.iterations, choice.environment)[0])
            for what in runs["Caffe"][0]:
                own, ours = ([run[what] for run in runs[side]] for side in ("Caffe", OURS))
                ratios = sorted(a / b for a, b in zip(own, ours))
                both = (1e-3 * statistics.median(own), 1e-3 * statistics.median(ours))
                rows.append(row("nets", name, DIRECTIONS[what], "caffe", *both))
                times = f"Caffe {statistics.median(own):8.1f} ms  clgraft {statistics.median(ours):8.1f} ms"
                spread = f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
                print(f"{name:10} {what:17} {times}  ratio {statistics.median(ratios):.2f} ({spread})", end="")
                if options.session:
                    alone = [run[what] for run in runs[SESSION]]
                    by_caffe, by_layers = (
                        statistics.median(a / b for a, b in zip(side, alone)) for side in (own, ours)
                    )
                    print(f"  session {statistics.median(alone):8.1f} ms", end="")
                    print(f"  Caffe / session {by_caffe:.2f}  clgraft / session {by_layers:.2f}", end="")
                    seconds = 1e-3 * statistics.median(alone)
                    rows.append(row("sessions", name, DIRECTIONS[what], "caffe", both[0], seconds))
                print(flush=True)
    threads = choice.threads(choice.tried[choice.chosen].threads) if choice.tried else Threads(0, choice.chosen)
    keep(options.json, core.context(), rows, {"caffe": caffe_and_blas()}, {"caffe": threads})


if __name__ == "__main__":
    if sys.argv[1:2] == ["time"]:  # the process of a session, called as `caffe time` is
        time_session(Path(sys.argv[sys.argv.index("-model") + 1]), int(sys.argv[sys.argv.index("-iterations") + 1]))
    else:
        main()
