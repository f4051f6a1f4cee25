"""Whole nets in Caffe: inference and training of a ResNet-18 and a MobileNet, as they are, swapped, and in regions."""

from __future__ import annotations

import gc
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from typing import Any

import caffe

from clgraft.caffe_layers.swap import swap_net
from clgraft.plugins.caffe.bench_layers import load
from clgraft.plugins.command_line.bench import floors
from clgraft.plugins.command_line.bench.peers import net_batches, random
from clgraft.plugins.command_line.bench.results import Measurement
from clgraft.plugins.command_line.bench.timing import compare

CLASSES = 1000


def _fill(net: Any) -> None:
    net.blobs["data"].data[...] = random(net.blobs["data"].data.shape, 1)
    for blobs in net.params.values():
        if len(blobs) == 3:  # a BatchNorm's: a mean of 0 and a variance of 1, once
            blobs[1].data[...] = blobs[2].data[...] = 1


def _forward(net: Any) -> None:
    net.forward()


def _step(net: Any) -> None:
    net.forward()
    net.clear_param_diffs()
    net.backward()


class _Text:
    """A net under construction: each method adds layers on top of a blob and returns the new blob's name."""

    def __init__(self, batch: int, pixels: int, learn: bool) -> None:
        self.norm = "" if learn else "batch_norm_param { use_global_stats: true }"
        shape = f"dim: {batch} dim: 3 dim: {pixels} dim: {pixels}"
        self.parts = [
            f'layer {{ name: "data" type: "Input" top: "data" input_param {{ shape {{ {shape} }} }} }}',
            f'layer {{ name: "label" type: "Input" top: "label" input_param {{ shape {{ dim: {batch} }} }} }}',
        ]
        self.count = 0

    def layer(self, kind: str, bottoms: Sequence[str], parameters: str = "", top: str = "") -> str:
        self.count += 1
        name = f"{kind.lower()}{self.count}"
        blobs = " ".join(f'bottom: "{bottom}"' for bottom in bottoms) + f' top: "{top or name}"'
        self.parts.append(f'layer {{ name: "{name}" type: "{kind}" {blobs} {parameters} }}')
        return top or name

    def conv(self, x: str, outputs: int, kernel: int, stride: int = 1, group: int = 1, relu: bool = True) -> str:
        """Add a Convolution, BatchNorm, Scale and, unless told otherwise, ReLU."""
        sizes = f"kernel_size: {kernel} stride: {stride} pad: {kernel // 2} group: {group}"
        y = self.layer(
            "Convolution",
            [x],
            f"convolution_param {{ num_output: {outputs} {sizes} bias_term: false weight_filler {{ type: 'msra' }} }}",
        )
        self.layer("BatchNorm", [y], self.norm, top=y)
        self.layer("Scale", [y], "scale_param { bias_term: true }", top=y)
        return self.layer("ReLU", [y], top=y) if relu else y

    def pool(self, x: str, parameters: str) -> str:
        return self.layer("Pooling", [x], f"pooling_param {{ {parameters} }}")

    def finish(self, x: str) -> str:
        """Add global pooling, the dense layer and the loss; return the text."""
        x = self.pool(x, "pool: AVE global_pooling: true")
        x = self.layer(
            "InnerProduct", [x], f"inner_product_param {{ num_output: {CLASSES} weight_filler {{ type: 'xavier' }} }}"
        )
        self.layer("SoftmaxWithLoss", [x, "label"], top="loss")
        return "\n".join(self.parts)


def resnet18(batch: int, learn: bool = True, pixels: int = 224) -> str:
    """Return a ResNet-18 (He et al. 2016): two blocks of two 3x3 convolutions at each of four sizes."""
    net = _Text(batch, pixels, learn)
    x = net.pool(net.conv("data", 64, 7, 2), "pool: MAX kernel_size: 3 stride: 2")
    width = 64
    for channels in (64, 128, 256, 512):
        for block in range(2):
            stride = 2 if block == 0 and channels > 64 else 1
            y = net.conv(net.conv(x, channels, 3, stride), channels, 3, relu=False)
            around = x if (stride, width) == (1, channels) else net.conv(x, channels, 1, stride, relu=False)
            y = net.layer("Eltwise", [around, y])
            x, width = net.layer("ReLU", [y], top=y), channels
    return net.finish(x)


def mobilenet(batch: int, learn: bool = True, pixels: int = 224) -> str:
    """Return a MobileNet (Howard et al. 2017): depthwise and 1x1 convolutions in turn."""
    net = _Text(batch, pixels, learn)
    x, width = net.conv("data", 32, 3, 2), 32
    plan = [(64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1)]
    for channels, stride in plan:
        x = net.conv(net.conv(x, width, 3, stride, group=width), channels, 1)
        width = channels
    return net.finish(x)


NETS = {"resnet18": resnet18, "mobilenet": mobilenet}


def computes_statistics() -> bool:
    """Return whether the native BatchNorm gathers the statistics of a batch."""
    net = load(
        'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 4 dim: 3 } } }'
        'layer { name: "op" type: "BatchNorm" bottom: "x" top: "y" }'
    )
    net.blobs["x"].data[...] = random((4, 3), 1)
    net.forward()
    return bool(net.params["op"][2].data[0])


def measure(
    names: Sequence[str],
    batches: Sequence[int],
    seconds: float = 20.0,
    least: int = 3,
    directions: Collection[str] = ("inference", "training"),
) -> Iterator[Measurement]:
    """Measure nets, a row at a time: inference and training, for each batch size.

    A training step is forward and backward. Ours is measured layer by layer and with regions.

    Where the native BatchNorm computes no statistics of a batch (that of the pip wheel), both sides use given ones:
    activations would overflow otherwise, and the native max pooling writes out of bounds on NaN.

    Parameters
    ----------
    names : sequence of str
        Of `NETS`.
    batches : sequence of int
    seconds : float
        For each row.
    least : int
        The least number of steps.
    directions : sequence of str
        ``inference``, ``training`` or both.

    Raises
    ------
    PluginError
        If a name is not in `NETS`.
    """
    learn = computes_statistics()
    for name, batch in net_batches(names, batches, NETS):
        text = NETS[name](batch, learn)
        label = f"{name} style batch {batch}"
        note = label + ("" if learn else ", batch norm with given statistics")
        for what, phase, call in (("inference", caffe.TEST, _forward), ("training", caffe.TRAIN, _step)):
            if what not in directions:
                continue
            swapped, report = swap_net(text, regions=True)
            nets = {
                "native": load(text, phase),
                "clgraft": load(swap_net(text)[0], phase),
                "regions": load(swapped, phase),
            }
            for net in nets.values():
                _fill(net)
            calls = {side: partial(call, net) for side, net in nets.items()}
            times = compare(calls, seconds, least)
            a, b, c = times["native"], times["clgraft"], times["regions"]
            figures = (a.median, b.median, a.spread, b.spread)
            yield Measurement(
                *("nets", label, note, "net", what, "caffe", *figures),
                regions=c.median,
                floor=floors.of(calls["clgraft"]),
                regions_floor=floors.of(calls["regions"]),
                uncounted=sum(row.kind != "Input" for row in report.left),
            )
            del nets, calls
            gc.collect()
