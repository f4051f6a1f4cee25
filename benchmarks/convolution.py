"""Convolutions against the frameworks' own, in one process, in turn: `python benchmarks/convolution.py resnet50 vgg16`.

Peers: MXNet's native operator, and PyTorch's where it is installed. Prints a row per problem and the geometric mean
of the ratios (peer's time over ours: above 1 we are faster). `--json FILE` keeps all figures.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable

import numpy as np
from timing import compare, geometric_mean, problem_lines

from clgraft import core


def ours(problem: core.ConvProblem, arrays: dict[str, np.ndarray]) -> Callable[[], object]:
    """Our plan on arrays that it may keep."""
    plan = core.context().plan(problem)
    bound = [
        core.Buffer(arrays[argument.name].ctypes.data, argument.nbytes, argument.dtype) for argument in plan.arguments
    ]
    plan.execute(bound)
    return lambda: plan.execute(bound)


def mxnet_calls(problem: core.ConvProblem, arrays: dict[str, np.ndarray]) -> dict[str, Callable[[], object]]:
    """MXNet's native operator: forward, and backward for data and filter together."""
    import mxnet as mx

    x, w, dy = (mx.nd.array(arrays[name], dtype=problem.dtype) for name in ("x", "w", "dy"))
    attributes = {
        "kernel": problem.kernel,
        "stride": problem.stride,
        "pad": problem.pad_begin,
        "dilate": problem.dilate,
        "num_filter": problem.out_channels,
        "num_group": problem.groups,
        "no_bias": True,
    }

    def forward() -> None:
        mx.nd.Convolution(x, w, **attributes).wait_to_read()

    x.attach_grad()
    w.attach_grad()
    with mx.autograd.record():
        y = mx.nd.Convolution(x, w, **attributes)
    y.wait_to_read()

    def backward() -> None:
        y.backward(dy, retain_graph=True)
        x.grad.wait_to_read()
        w.grad.wait_to_read()

    return {"forward": forward, "backward": backward}


def torch_calls(problem: core.ConvProblem, arrays: dict[str, np.ndarray]) -> dict[str, Callable[[], object]]:
    """PyTorch's CPU operator on NCHW tensors."""
    import torch

    x, w, dy = (torch.from_numpy(arrays[name]) for name in ("x", "w", "dy"))
    function = (torch.nn.functional.conv1d, torch.nn.functional.conv2d, torch.nn.functional.conv3d)[problem.ndim - 1]
    attributes = {
        "stride": problem.stride,
        "padding": problem.pad_begin,
        "dilation": problem.dilate,
        "groups": problem.groups,
    }

    def forward() -> None:
        with torch.no_grad():
            function(x, w, **attributes)

    gx, gw = x.clone().requires_grad_(), w.clone().requires_grad_()
    y = function(gx, gw, **attributes)

    def backward() -> None:
        torch.autograd.grad(y, (gx, gw), dy, retain_graph=True)

    return {"forward": forward, "backward": backward}


PEERS = {"mxnet": mxnet_calls, "torch": torch_calls}


def measure(problem: core.ConvProblem, peers: list[str], seconds: float) -> dict[str, dict[str, float]]:
    """Time one problem; give milliseconds per direction and contender."""
    rng = np.random.default_rng(0)
    shapes = {
        argument.name: argument.shape
        for d in ("forward", "backward_data")
        for argument in problem.with_direction(d).arguments()
    }
    shapes["dw"] = shapes["w"]
    arrays = {name: rng.standard_normal(shape).astype(problem.dtype) for name, shape in shapes.items()}
    data, weights = (ours(problem.with_direction(d), arrays) for d in ("backward_data", "backward_filter"))

    def backward() -> None:
        data()
        weights()

    calls = {"forward": {"ours": ours(problem, arrays)}, "backward": {"ours": backward}}
    for peer in peers:
        for direction, call in PEERS[peer](problem, arrays).items():
            calls[direction][peer] = call
    rows = {}
    for direction, contenders in calls.items():
        rows[direction] = {name: timing.median * 1e3 for name, timing in compare(contenders, seconds).items()}
        rows[direction]["gflops"] = problem.flops * (1 if direction == "forward" else 2) / rows[direction]["ours"] / 1e6
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="*", default=["resnet50"], help="names of files in tests/problems")
    parser.add_argument("--peers", default="mxnet", help="comma separated: mxnet, torch")
    parser.add_argument("--only", default="", help="part of a problem's name")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each row")
    parser.add_argument("--json", help="file for all figures")
    options = parser.parse_args()
    peers = [peer for peer in options.peers.split(",") if peer]
    print(f"device: {core.context().device.name}; ms, and peer's time over ours")
    results = []
    ratios: dict[tuple[str, str], list[float]] = {}
    for name in options.sets:
        for label, text in problem_lines(name).items():
            if options.only not in label:
                continue
            rows = measure(core.parse(text), peers, options.seconds)
            results.append({"set": name, "name": label, "problem": text, **rows})
            for direction, row in rows.items():
                shown = "  ".join(f"{peer} {row[peer]:8.2f} ({row[peer] / row['ours']:5.2f}x)" for peer in peers)
                print(
                    f"{name:10} {label:26} {direction:8} ours {row['ours']:8.2f} {row['gflops']:6.0f} GFLOPS  {shown}",
                    flush=True,
                )
                for peer in peers:
                    ratios.setdefault((peer, direction), []).append(row[peer] / row["ours"])
    for (peer, direction), values in ratios.items():
        print(f"against {peer}, {direction}: geometric mean {geometric_mean(values):.2f}x, worst {min(values):.2f}x")
    if options.json:
        with open(options.json, "w") as file:
            json.dump(results, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
