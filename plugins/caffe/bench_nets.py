"""Whole nets in Caffe: inference and training of those of `net_texts`, as they are, swapped, and in regions."""

from __future__ import annotations

import gc
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from typing import Any

import caffe

from clgraft.caffe_layers.swap import swap_net
from clgraft.plugins.caffe.bench_layers import load
from clgraft.plugins.caffe.net_texts import NETS
from clgraft.plugins.command_line.bench import floors
from clgraft.plugins.command_line.bench.peers import net_batches, random
from clgraft.plugins.command_line.bench.results import Measurement
from clgraft.plugins.command_line.bench.timing import compare


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
