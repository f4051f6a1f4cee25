"""Check a swapped net in Caffe layer by layer: each layer gets the inputs of Caffe's own, so errors do not add up."""

from __future__ import annotations

import os
import re
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from clgraft.caffe_layers.prototxt import schema
from clgraft.caffe_layers.swap import naming, net_of, swap_net
from clgraft.caffe_layers.swap.upgrade import upgrade
from clgraft.core.selection import already
from clgraft.plugins.command_line.check.runner import CheckRow, relative_error
from clgraft.plugins.plugin import PluginError

LIMIT = 2e-4


def rows(path: str, phase: str = "train", repeats: int = 3) -> Iterator[CheckRow]:
    """Yield a row for every top, bottom gradient and parameter gradient of every swapped layer.

    Gradients start from random numbers at the layer's own tops, so nets without a loss are checked as well.

    Parameters
    ----------
    path : str
        A net, or a solver that names one.
    phase : str
        ``train`` or ``test``.
    repeats : int
        How often each layer is timed.
    """
    caffe, native_text, place = opened(path, phase)
    with naming(place):
        swapped_text, report = swap_net(native_text)
    if not report.swapped:
        what = "in which no layer has an OpenCL counterpart"
        if report.before:
            what = f"{already(report.before, 'layer')}, expected the original"
        raise PluginError(f"[caffe] got {path}, {what}")
    caffe.set_mode_cpu()
    number = caffe.TRAIN if phase == "train" else caffe.TEST
    native, ours = (_load(caffe, prototxt, number) for prototxt in (native_text, swapped_text))
    rng = np.random.default_rng(11)
    _set_weights(native, rng)
    training, labels = _training_batch_norms(native_text, phase), _labels(native_text)
    blobs, our_blobs = list(native.blobs.values()), list(ours.blobs.values())
    for index, (layer, twin) in enumerate(zip(native.layers, ours.layers)):
        name = native._layer_names[index]
        bottoms, tops = list(native._bottom_ids(index)), list(native._top_ids(index))
        if layer.type == "Input":
            for top in tops:
                shape = blobs[top].data.shape
                named = list(native.blobs)[top] in labels
                blobs[top].data[...] = rng.integers(0, 2, shape) if named else rng.normal(size=shape)
        swapped = twin.type == "Python" and layer.type != "Python"
        for blob, other in zip(layer.blobs, twin.blobs):
            other.data[...] = blob.data
        given = {bottom: blobs[bottom].data.copy() for bottom in bottoms}
        native._forward(index, index)
        if swapped and layer.type == "Dropout" and phase == "train":
            yield CheckRow(f"{name} ({layer.type})", "all", 0.0, LIMIT, note="its random numbers are its own")
        elif swapped:
            yield from _check(native, ours, index, given, (bottoms, tops), rng, repeats, name in training)
        for top in tops:
            our_blobs[top].reshape(*blobs[top].data.shape)
            our_blobs[top].data[...] = blobs[top].data


_READING = re.compile(r"\[libprotobuf ERROR [^\]]*\] Error parsing text-format caffe\.\w+: (?:(\d+):(\d+): )?(.*)")
_FATAL = re.compile(r"F\d+ \S+ +\d+ \S+\] (.*)")


def explain(lines: list[str], path: str, **_: Any) -> str:
    """Return why Caffe ended the process: it aborts on a net that it rejects, and its reason is in what it printed."""
    found: list[str] = []
    for line in lines:
        reading, fatal = _READING.match(line), _FATAL.match(line)
        if reading:
            row, column, text = reading.groups()
            found.append(f"line {row}, column {column}: {text}" if row else text)
        elif fatal and not (found and "Failed to parse" in fatal[1]):
            found.append(fatal[1])
    if not found:
        return ""
    return f"[caffe] got {path}, which this Caffe rejects: {'; '.join(found)}"


def _check(
    native: Any,
    ours: Any,
    index: int,
    given: dict[int, Any],
    ends: tuple[list[int], list[int]],
    rng: np.random.Generator,
    repeats: int,
    gathers: bool,
) -> Iterator[CheckRow]:
    bottoms, tops = ends
    nets = (native, ours)
    blobs = [list(net.blobs.values()) for net in nets]
    names = list(native.blobs)
    layer, twin = native.layers[index], ours.layers[index]
    title = f"{native._layer_names[index]} ({layer.type})"
    results: dict[str, list[Any]] = {}

    def step(which: int) -> float:
        net = nets[which]
        for bottom, data in given.items():
            blobs[which][bottom].data[...] = data
        start = time.perf_counter()
        net._forward(index, index)
        net._backward(index, index)
        return time.perf_counter() - start

    seeds = {top: rng.normal(size=blobs[0][top].data.shape) for top in tops}
    weights = [blob.data.copy() for blob in layer.blobs]
    for which, (net, holder) in enumerate(zip(nets, (layer, twin))):
        for blob, weight in zip(holder.blobs, weights):
            blob.data[...] = weight  # a batch norm's statistics have moved with the first run
            blob.diff[...] = 0
        for bottom, data in given.items():
            blobs[which][bottom].data[...] = data
        for top in set(tops) - set(bottoms):
            blobs[which][top].data[...] = np.nan
        net._forward(index, index)
        for top in tops:
            results.setdefault(f"top {names[top]}", []).append(blobs[which][top].data.copy())
            blobs[which][top].diff[...] = seeds[top]
        net._backward(index, index)
        for bottom in bottoms:
            results.setdefault(f"gradient of bottom {names[bottom]}", []).append(blobs[which][bottom].diff.copy())
        for number, blob in enumerate(holder.blobs):
            if layer.type == "BatchNorm":
                results.setdefault(f"parameter {number}", []).append(blob.data.copy())
            results.setdefault(f"gradient of parameter {number}", []).append(blob.diff.copy())
    if gathers and np.array_equal(layer.blobs[2].data, weights[2]):
        # the factor moves with every batch; some wheels' Caffe leaves it and normalises by nothing
        yield CheckRow(title, "all", 0.0, LIMIT, note="native keeps no statistics")
        return
    outputs = [blobs[0][top].data.copy() for top in tops]
    times = [[step(0), step(1)] for _ in range(repeats)]
    for top, data in zip(tops, outputs):
        blobs[0][top].data[...] = data
    medians: list[float | None] = [statistics.median(column) for column in zip(*times)] or [None, None]
    for tensor, (expected, got) in results.items():
        yield CheckRow(
            title, tensor, relative_error(got, expected), LIMIT, seconds=medians[1], native_seconds=medians[0]
        )
        medians = [None, None]


def _training_batch_norms(text: str, phase: str) -> set[str]:
    """Return the names of the batch norms that normalise by the batch's own statistics."""
    found = set()
    for layer in schema.parse("NetParameter", text).layer:
        if layer.type == "BatchNorm":
            parameters = layer.batch_norm_param
            frozen = parameters.use_global_stats if parameters.HasField("use_global_stats") else phase == "test"
            if not frozen:
                found.add(layer.name)
    return found


def _labels(text: str) -> set[str]:
    """Return the names of the blobs that hold numbers of classes."""
    layers = schema.parse("NetParameter", text).layer
    ending = ("Loss", "Accuracy")
    return {layer.bottom[1] for layer in layers if layer.type.endswith(ending) and len(layer.bottom) > 1}


def opened(path: str, phase: str) -> tuple[Any, str, Path]:
    """Return Caffe's module, the text of a net, which computes gradients even without a loss, and the net's file.

    Raises
    ------
    PluginError
        If Caffe cannot be imported.
    """
    try:
        import caffe
    except (ImportError, OSError) as error:
        raise PluginError(f"[caffe] Caffe is needed to check a net and cannot be imported: {error}") from None
    text, place = net_of(Path(path), phase == "train")
    with naming(place):
        return caffe, _forced(upgrade(text).text), place


def _forced(text: str) -> str:
    """Return a net that computes gradients even without a loss; the swap of losses has to see that."""
    return re.sub(r"(?m)^[ \t]*force_backward\s*:\s*\w+[ \t]*[;,]?", "", text) + "\nforce_backward: true\n"


def _load(caffe: Any, text: str, phase: int) -> Any:
    handle, path = tempfile.mkstemp(suffix=".prototxt")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors="surrogateescape", newline="") as file:
            file.write(text)
        return caffe.Net(path, phase)
    finally:
        os.unlink(path)


def _set_weights(net: Any, rng: np.random.Generator) -> None:
    """Set random values for weights that no filler has set."""
    for layer in net.layers:
        for number, blob in enumerate(layer.blobs):
            shape = blob.data.shape
            if blob.data.size > 1 and np.ptp(blob.data) > 0:
                continue
            if layer.type == "BatchNorm":
                blob.data[...] = rng.uniform(0.5, 1.5, shape) if number < 2 else 1
            elif len(shape) > 1:
                blob.data[...] = rng.normal(size=shape) * np.sqrt(2 / max(1, int(np.prod(shape[1:]))))
            else:
                blob.data[...] = rng.uniform(0.5, 1.5, shape)
