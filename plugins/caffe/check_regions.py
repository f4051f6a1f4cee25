"""Check a net in Caffe with regions: whole passes against the same net swapped layer by layer.

Values inside of regions cannot be compared one by one. ``clgraft check`` without ``--regions`` compares the layers with
Caffe's own; this compares what regions make of them: visible blobs, gradients of inputs and parameters, statistics.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from clgraft.caffe_layers.swap import naming, swap_net
from clgraft.plugins.caffe.check import _labels, _load, _set_weights, explain, opened
from clgraft.plugins.command_line.check.runner import CheckRow, distance
from clgraft.plugins.plugin import PluginError

__all__ = ["explain", "rows"]

NUDGE = 2.0**-21  # four units of float32's rounding: what one layer may do to its top
# an error passes that is so many times what nudged parameters and inputs do, and one that is smaller than the floor
FACTOR, FLOOR = 10.0, 2e-5


def rows(path: str, phase: str = "train", repeats: int = 3) -> Iterator[CheckRow]:
    """Yield a row for every visible blob, every gradient of an input or a parameter, and every statistic.

    Parameters
    ----------
    path : str
        A net, or a solver that names one.
    phase : str
        ``train`` or ``test``.
    repeats : int
        How often a pass of each net is timed.
    """
    caffe, native_text, place = opened(path, phase)
    with naming(place):
        by_layer, _ = swap_net(native_text)
        by_region, report = swap_net(native_text, regions=True)
    if not report.regions:
        raise PluginError(f"[caffe] got {path}, in which no two layers make a region")
    caffe.set_mode_cpu()
    number = caffe.TRAIN if phase == "train" else caffe.TEST
    nets = [_load(caffe, each, number) for each in (native_text, by_layer, by_layer, by_region)]
    native, layers, nudged, ours = nets  # the first one has Caffe's fillers, and does not run
    rng = np.random.default_rng(11)
    labels = _labels(native_text)
    _set_weights(native, rng)
    for name in native.inputs or _sources(native):
        blob = native.blobs[name]
        blob.data[...] = rng.integers(0, 2, blob.data.shape) if name in labels else rng.normal(size=blob.data.shape)
    for net in nets[1:]:
        _copy(native, net)
    for name in native.inputs or _sources(native):
        if name not in labels:
            _nudge(nudged.blobs[name].data, rng)
    for blobs in nudged.params.values():
        for blob in blobs:
            _nudge(blob.data, rng)
    state = _state(ours)
    hidden = {name for region in report.regions for name in region.hidden}
    results = [_pass(caffe, net, hidden) for net in (layers, nudged, ours)]
    times = []
    for _ in range(repeats):
        _restore(ours, state)
        times.append(_timed(ours))
    median: float | None = statistics.median(times) if times else None
    expected, moved, got = results
    for tensor, reference in expected.items():
        usual = distance(moved[tensor], reference)
        limit = FLOOR + FACTOR * usual
        yield CheckRow(Path(path).name, tensor, distance(got[tensor], reference), limit, seconds=median)
        median = None


def _sources(net: Any) -> list[str]:
    """Return the blobs of the net's Input layers."""
    return [
        top for name, layer in zip(net._layer_names, net.layers) if layer.type == "Input" for top in net.top_names[name]
    ]


def _copy(source: Any, target: Any) -> None:
    """Copy a net's inputs and parameters to another one."""
    for name in source.inputs or _sources(source):
        target.blobs[name].data[...] = source.blobs[name].data
    for name, blobs in source.params.items():
        for index, blob in enumerate(blobs):
            target.params[name][index].data[...] = blob.data


def _nudge(array: Any, rng: np.random.Generator) -> None:
    array *= 1 + NUDGE * rng.choice([-1, 1], array.shape)


def _state(net: Any) -> list[Any]:
    return [blob.data.copy() for blobs in net.params.values() for blob in blobs]


def _restore(net: Any, state: list[Any]) -> None:
    for blob, values in zip((blob for blobs in net.params.values() for blob in blobs), state):
        blob.data[...] = values  # statistics move with every pass
        blob.diff[...] = 0


def _seed(net: Any) -> None:
    """Set the gradients that enter at the net's outputs, the same for every net."""
    rng = np.random.default_rng(17)
    for name in net.outputs:
        net.blobs[name].diff[...] = rng.normal(size=net.blobs[name].diff.shape)


def _pass(caffe: Any, net: Any, hidden: set[str]) -> dict[str, Any]:
    """Go forward and backward; return everything that is compared, but for what only one side shows."""
    _restore(net, _state(net))
    caffe.set_random_seed(11)
    net.forward()
    _seed(net)
    net._backward(len(net.layers) - 1, 0)
    found = {f"blob {name}": blob.data.copy() for name, blob in net.blobs.items() if _shown(name, hidden)}
    statistics_of = {
        name for name, layer in zip(net._layer_names, net.layers) if type(layer).__name__ == "OclBatchNorm"
    }
    for name in net.inputs or _sources(net):
        found[f"gradient of {name}"] = net.blobs[name].diff.copy()
    for name, blobs in net.params.items():
        for index, blob in enumerate(blobs):
            if name in statistics_of:
                found[f"parameter {index} of {name}"] = blob.data.copy()
            found[f"gradient of parameter {index} of {name}"] = blob.diff.copy()
    return {tensor: value for tensor, value in found.items() if value.size}


def _shown(name: str, hidden: set[str]) -> bool:
    """Return whether a blob is visible, and neither hidden nor Caffe's copy of one for a further reader."""
    return name not in hidden and "_split_" not in name


def _timed(net: Any) -> float:
    start = time.perf_counter()
    net.forward()
    net._backward(len(net.layers) - 1, 0)
    return time.perf_counter() - start
