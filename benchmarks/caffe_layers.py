"""Caffe layers against the native ones, in one process, interleaved: `python benchmarks/caffe_layers.py conv bn`.

Times forward and backward of nets of one layer, of every family or of those whose names hold a given word. Prints
a row per layer and direction with both times in milliseconds and native over ours: above 1 ours is faster.
Batch norm in training means something only against a Caffe that computes statistics, see `.ci/bullseye.sh`.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path

os.environ.setdefault("PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION", "python")
os.environ.setdefault("GLOG_minloglevel", "2")
sys.path.append(str(Path(__file__).resolve().parent.parent / "tests" / "caffe_layers"))

import numpy as np
from caffe_nets import inputs, layer, load
from timing import compare, geometric_mean

from clgraft import core

BATCH = 8
WIDE = (BATCH, 64, 56, 56)


def conv(outputs: int, kernel: int, more: str = "") -> str:
    """Give convolution_param with a padding that keeps the size."""
    return f"convolution_param {{ num_output: {outputs} kernel_size: {kernel} pad: {kernel // 2} {more} }}"


LAYERS = {
    "conv 3x3 64": ("Convolution", conv(64, 3), WIDE, 1),
    "conv 3x3 256": ("Convolution", conv(256, 3), (BATCH, 256, 14, 14), 1),
    "conv 1x1 64-256": ("Convolution", conv(256, 1), WIDE, 1),
    "conv 7x7/2 3-64": ("Convolution", conv(64, 7, "stride: 2"), (BATCH, 3, 224, 224), 1),
    "conv depthwise 144": ("Convolution", conv(144, 3, "group: 144"), (BATCH, 144, 56, 56), 1),
    "bn": ("BatchNorm", "", WIDE, 1),
    "bn global": ("BatchNorm", "batch_norm_param { use_global_stats: true }", WIDE, 1),
    "scale": ("Scale", "scale_param { bias_term: true }", WIDE, 1),
    "bias": ("Bias", "", WIDE, 1),
    "relu": ("ReLU", "", WIDE, 1),
    "prelu": ("PReLU", "", WIDE, 1),
    "elu": ("ELU", "", WIDE, 1),
    "sigmoid": ("Sigmoid", "", WIDE, 1),
    "tanh": ("TanH", "", WIDE, 1),
    "absval": ("AbsVal", "", WIDE, 1),
    "power": ("Power", "power_param { power: 2 }", WIDE, 1),
    "exp": ("Exp", "", WIDE, 1),
    "log": ("Log", "log_param { shift: 9 }", WIDE, 1),
    "bnll": ("BNLL", "", WIDE, 1),
    "eltwise sum": ("Eltwise", "", WIDE, 2),
    "eltwise product": ("Eltwise", "eltwise_param { operation: PROD }", WIDE, 2),
    "eltwise maximum": ("Eltwise", "eltwise_param { operation: MAX }", WIDE, 2),
}


def main(words: list[str]) -> None:
    """Time the layers whose names hold one of the words, or all."""
    print(core.context().device.name)
    print(f"{'layer':20} {'direction':9} {'native ms':>10} {'ours ms':>10} {'ratio':>7}")
    ratios = []
    for name, (kind, parameters, shape, count) in LAYERS.items():
        if words and not any(word in name for word in words):
            continue
        bottoms = [f"x{i}" for i in range(count)]
        head = inputs(dict.fromkeys(bottoms, shape))
        nets = {}
        for who in ("native", "ours"):
            text = layer(kind, parameters, ours=who == "ours", bottoms=bottoms)
            nets[who] = net = load(head + text + "force_backward: true")
            random = np.random.default_rng(1)
            for blob in [net.blobs[bottom] for bottom in bottoms] + list(net.params.get("op", [])):
                blob.data[...] = random.standard_normal(blob.data.shape)
        last = len(nets["ours"].layers) - 1
        for direction in ("forward", "backward"):
            step = {who: partial(getattr(net, f"_{direction}"), last, last) for who, net in nets.items()}
            times = {who: timing.median * 1e3 for who, timing in compare(step, seconds=0.5, least=5).items()}
            ratios.append(times["native"] / times["ours"])
            print(
                f"{name:20} {direction:9} {times['native']:10.3f} {times['ours']:10.3f} {ratios[-1]:7.2f}", flush=True
            )
    print(f"geometric mean of {len(ratios)} ratios: {geometric_mean(ratios):.2f}")


if __name__ == "__main__":
    main(sys.argv[1:])
