"""Times clgraft's layers in Caffe's OpenCL branch against the branch's own convolutions (LibDNN), on one OpenCL device.

    CAFFE_OPENCL_ROOT=/folder/of/the/branch python benchmarks/caffe_opencl.py --batch 4

Each side runs in a process of its own, one after the other, `--rounds` times; the figures are the least processor time
of a pass over all rounds, because processor time is what a machine that does other work allows to compare. On CPU
devices LibDNN takes seconds for a pass, and minutes for 7x7 kernels on 224 x 224 pixels, which are left out.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent))
from benchmarks.progress import announced
from benchmarks.timing import geometric_mean
from tests.caffe_layers.opencl.conftest import ROOT, Branch

# Channels in and out, pixels along an axis, and the rest of convolution_param.
LAYERS = (
    (64, 64, 56, "kernel_size: 3 pad: 1"),
    (128, 128, 28, "kernel_size: 3 pad: 1"),
    (256, 256, 14, "kernel_size: 3 pad: 1"),
    (64, 256, 56, "kernel_size: 1"),
    (64, 128, 56, "kernel_size: 3 stride: 2 pad: 1"),
)


def net(batch: int, channels: int, outputs: int, size: int, parameters: str) -> str:
    """Return a net of one convolution, whose input needs a gradient."""
    shape = f"shape {{ dim: {batch} dim: {channels} dim: {size} dim: {size} }}"
    return f"""
        force_backward: true
        layer {{ name: "x" type: "Input" top: "x" input_param {{ {shape} }} }}
        layer {{ name: "y" type: "Convolution" bottom: "x" top: "y"
                 convolution_param {{ num_output: {outputs} {parameters} engine: LIBDNN }} }}"""


def main() -> None:
    """Print milliseconds of both sides and their ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--passes", type=int, default=5, help="in each process")
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    if not ROOT:
        parser.error("CAFFE_OPENCL_ROOT has to name a build of the branch")
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        branch = Branch(Path(folder))
        for layer in announced(LAYERS):
            times = {}
            for _ in range(options.rounds):
                for side in ("LibDNN", "clgraft"):
                    ours = "all" if side == "clgraft" else ""
                    printed = branch.net(net(options.batch, *layer), "gpu", ours, options.passes).printed.split()
                    forward, backward = (float(printed[printed.index(word) + 1]) for word in ("forward", "backward"))
                    known = times.get(side, (forward, backward))
                    times[side] = min(known[0], forward), min(known[1], backward)
            found = [theirs / mine for theirs, mine in zip(times["LibDNN"], times["clgraft"])]
            ratios.append(found)
            text = "  ".join(f"{side} {t[0]:.2f} {t[1]:.2f}" for side, t in times.items())
            print(f"{layer}: {text} ms forward, backward; {found[0]:.1f}x {found[1]:.1f}x", flush=True)
    print(f"geometric mean {geometric_mean(r[0] for r in ratios):.1f}x {geometric_mean(r[1] for r in ratios):.1f}x")


if __name__ == "__main__":
    main()
