"""Train one small net on real digits, with the framework's operators and after a swap, in every installed framework.

`make demo`, or `python examples/digits/demo.py [--epochs 12] [--output FOLDER]`. It trains the original net, the
swapped one, and the swapped one with regions (connected operators as one graph) in turn, prints them side by side,
writes one picture with their curves, and fails if they differ by more than rounding, or have learnt too little.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from pathlib import Path

os.environ.setdefault("GLOG_minloglevel", "2")
os.environ.setdefault("PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION", "python")  # for Caffe's own messages
os.environ.setdefault("MXNET_SUBGRAPH_VERBOSE", "0")


NEEDED = ("matplotlib", "skimage", "sklearn")  # images and pictures, which clgraft itself does without


def progress(label: str):
    """Return a function that redraws one line."""
    tty = sys.stdout.isatty()

    def show(step: int, steps: int, original: float, swapped: float) -> None:
        if tty or step == steps or step % max(1, steps // 5) == 0:
            end = "\r" if tty and step < steps else "\n"
            done = "#" * (30 * step // steps)
            print(
                f"{label} [{done:30}] {step}/{steps}  loss original {original:.5f}  swapped {swapped:.5f}",
                end=end,
                flush=True,
            )

    return show


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--output", type=Path, default=Path("demo-output"), help="folder for the picture and the nets")
    options = parser.parse_args()
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        print(f'got no {", ".join(missing)}, expected what pip install ".[demo]" brings, next to an OpenCL driver')
        return 1
    options.output.mkdir(parents=True, exist_ok=True)
    from record import draw, verdict

    from clgraft.plugins import registry
    from clgraft.plugins.command_line.bench import peer_process

    environment = registry.environment()
    comparisons, absent = [], []
    for framework, module in (("mxnet", "train_mxnet"), ("caffe", "train_caffe")):
        if importlib.util.find_spec(framework) is None:
            absent.append(framework)
            continue
        threads = peer_process.best(framework, environment)
        os.environ.update(threads.environment)  # the framework reads it when it is imported
        print(f"{framework} computes with {threads}")
        trainer = importlib.import_module(module)
        comparison, report = trainer.compare(options.epochs, progress(framework), options.output)
        print(report)
        print(comparison.report(), flush=True)
        comparisons.append(comparison)
    for framework in absent:
        print(f"{framework}: cannot be imported by this Python ({sys.version.split()[0]}), left out")
    if not comparisons:
        print("got neither mxnet nor caffe, expected at least one")
        return 1
    picture = options.output / "digits.png"
    draw(comparisons, picture)
    print(f"curves: {picture}")
    lines, status = verdict(comparisons)
    print(*lines, sep="\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
