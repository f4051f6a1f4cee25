"""Every MXNet operator through its adapter against native: `python benchmarks/mxnet_operators.py [--only conv]`.

Both sides are called as a user calls them (`mx.nd.Custom` and the native operator), in turn in one process;
forward, and backward through autograd. Above 1 the grafted operator is faster. The last rows are tiny arrays:
what a call costs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from timing import compare, geometric_mean

import clgraft.mxnet_ops  # noqa: F401  isort: skip  (before MXNet)

import mxnet as mx

from clgraft import core

Shape = tuple[int, ...]


def conv(channels: int, size: int, filters: int, kernel: int, stride: int = 1, group: int = 1, dilate: int = 1) -> Any:
    """A convolution of 8 images: native name, ours, attributes, input shapes."""
    pad = dilate * (kernel - 1) // 2
    attributes = {
        "kernel": (kernel, kernel),
        "stride": (stride, stride),
        "dilate": (dilate, dilate),
        "pad": (pad, pad),
        "num_filter": filters,
        "num_group": group,
        "no_bias": True,
    }
    shapes = [(8, channels, size, size), (filters, channels // group, kernel, kernel)]
    return "Convolution", "ocl_depthwise_conv" if group == channels else "ocl_conv", attributes, shapes


def norm(channels: int, size: int) -> Any:
    """A batch norm of 8 images."""
    vector = (channels,)
    shapes = [(8, channels, size, size), vector, vector, vector, vector]
    return "BatchNorm", "ocl_batchnorm", {"fix_gamma": False}, shapes


def activation(kind: str, channels: int = 64, size: int = 56) -> Any:
    """An activation of 8 images."""
    return "Activation", "ocl_activation", {"act_type": kind}, [(8, channels, size, size)]


def pool(kind: str, channels: int, size: int, kernel: int, stride: int = 1, pad: int = 0) -> Any:
    """A pooling of 8 images; of whole planes if the kernel is 0."""
    attributes: dict[str, Any] = {"pool_type": kind, "global_pool": not kernel}
    if kernel:
        attributes.update(kernel=(kernel, kernel), stride=(stride, stride), pad=(pad, pad))
    return "Pooling", "ocl_pooling", attributes, [(8, channels, size, size)]


def add(channels: int = 64, size: int = 56) -> Any:
    """A residual sum of 8 images."""
    return "elemwise_add", "ocl_eltwise", {}, [(8, channels, size, size)] * 2


CASES = {
    "conv 3x3 64 56": conv(64, 56, 64, 3),
    "conv 3x3 128 28": conv(128, 28, 128, 3),
    "conv 3x3 256 14": conv(256, 14, 256, 3),
    "conv 3x3 512 7": conv(512, 7, 512, 3),
    "conv 1x1 64-256 56": conv(64, 56, 256, 1),
    "conv 1x1 256-64 56": conv(256, 56, 64, 1),
    "conv 1x1 512-128 28": conv(512, 28, 128, 1),
    "conv 7x7/2 3-64 224": conv(3, 224, 64, 7, 2),
    "conv 5x5 64-192 27": conv(64, 27, 192, 5),
    "conv 3x3/2 128 56": conv(128, 56, 128, 3, 2),
    "depthwise 3x3 144 56": conv(144, 56, 144, 3, group=144),
    "depthwise 3x3 32 112": conv(32, 112, 32, 3, group=32),
    "depthwise 3x3 960 7": conv(960, 7, 960, 3, group=960),
    "depthwise 3x3/2 144 56": conv(144, 56, 144, 3, 2, group=144),
    "depthwise 3x3 d2 144 56": conv(144, 56, 144, 3, group=144, dilate=2),
    "depthwise 5x5 144 28": conv(144, 28, 144, 5, group=144),
    "batch norm 64 56": norm(64, 56),
    "batch norm 256 14": norm(256, 14),
    "batch norm 512 7": norm(512, 7),
    "relu 64 56": activation("relu"),
    "sigmoid 64 56": activation("sigmoid"),
    "tanh 64 56": activation("tanh"),
    "softrelu 64 56": activation("softrelu"),
    "sum 64 56": add(),
    "pool max 3x3/2 64 112": pool("max", 64, 112, 3, 2, 1),
    "pool max 2x2/2 64 112": pool("max", 64, 112, 2, 2),
    "pool max 3x3 192 28": pool("max", 192, 28, 3, 1, 1),
    "pool average 2x2/2 128 56": pool("avg", 128, 56, 2, 2),
    "pool average 3x3 288 35": pool("avg", 288, 35, 3, 1, 1),
    "pool average all 2048 7": pool("avg", 2048, 7, 0),
    "pool max all 512 14": pool("max", 512, 14, 0),
    "call: relu 1 1": activation("relu", 1, 1),
    "call: sum 1 1": add(1, 1),
}


def calls(native: bool, case: Any, values: list[np.ndarray]) -> dict[str, Callable[[], object]]:
    """Give forward and backward of one side on arrays of its own."""
    name, op_type, attributes, _ = case
    arrays = [mx.nd.array(value) for value in values]
    for array in arrays:
        array.attach_grad()
    if native:
        operator = getattr(mx.nd, name)
        run = lambda: operator(*arrays, **attributes)  # noqa: E731
    else:
        run = lambda: mx.nd.Custom(*arrays, op_type=op_type, **attributes)  # noqa: E731

    def forward() -> None:
        run().wait_to_read()

    with mx.autograd.record():
        y = run()
    y.wait_to_read()
    dy = mx.nd.array(np.random.default_rng(1).standard_normal(y.shape).astype(np.float32))

    def backward() -> None:
        y.backward(dy, retain_graph=True)
        mx.nd.waitall()

    return {"forward": forward, "backward": backward}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="part of a row's name")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each direction of a row")
    options = parser.parse_args()
    print(f"device: {core.context().device.name}; milliseconds, and native over ours")
    ratios: dict[str, list[float]] = {}
    rng = np.random.default_rng(0)
    for label, case in CASES.items():
        if options.only not in label:
            continue
        values = [rng.standard_normal(shape).astype(np.float32) for shape in case[3]]
        if case[0] == "BatchNorm":
            values[4] = np.abs(values[4])
        sides = {"native": calls(True, case, values), "ours": calls(False, case, values)}
        columns = []
        for direction in ("forward", "backward"):
            times = compare({side: sides[side][direction] for side in sides}, options.seconds)
            native, ours = times["native"].median * 1e3, times["ours"].median * 1e3
            columns.append(f"{direction} {native:8.3f} {ours:8.3f} {native / ours:6.2f}x")
            if not label.startswith("call"):
                ratios.setdefault(f"{label.split()[0]} {direction}", []).append(native / ours)
        print(f"{label:26} {'   '.join(columns)}", flush=True)
    for family, values in ratios.items():
        print(f"{family}: geometric mean {geometric_mean(values):.2f}x, worst {min(values):.2f}x")
    return 0


if __name__ == "__main__":
    sys.exit(main())
