"""Depthwise convolution against MXNet's own, in one process, interleaved: `python benchmarks/depthwise.py`.

A depthwise convolution does so little arithmetic that memory bounds it, so beside the ratios (MXNet's median time over
ours: above 1 we are faster) stand the bytes of x and y a second. Backward is data and filter together.

MXNet's OpenMP threads spin for a while after each of its operators and take the cores that the next kernel wants;
set OMP_WAIT_POLICY=passive to see the kernels without that.
"""

from __future__ import annotations

import argparse
import sys

from convolution import measure
from timing import geometric_mean

from clgraft import core
from clgraft.core import problem_sets


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="part of a problem's name")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each row")
    options = parser.parse_args()
    print(f"device: {core.context().device.name}; median ms, GB/s, MXNet's time over ours")
    ratios: dict[str, list[float]] = {"forward": [], "backward": []}
    for name, text in problem_sets.lines("depthwise").items():
        if options.only not in name:
            continue
        problem = core.parse(text)
        moved = sum(argument.nbytes for argument in problem.arguments() if argument.name in "xy")
        shown = []
        for direction, row in measure(problem, ["mxnet"], options.seconds).items():
            passes = 1 if direction == "forward" else 2
            ratio = row["mxnet"] / row["ours"]
            ratios[direction].append(ratio)
            shown.append(
                f"{direction} {row['ours']:7.3f} ms {passes * moved / row['ours'] / 1e6:5.1f} GB/s {ratio:5.2f}x"
            )
        print(f"{name:20} {'   '.join(shown)}", flush=True)
    for direction, values in ratios.items():
        print(f"{direction}: geometric mean {geometric_mean(values):.2f}x, worst {min(values):.2f}x")
    return 0


if __name__ == "__main__":
    sys.exit(main())
