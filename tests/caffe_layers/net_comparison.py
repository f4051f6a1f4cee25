"""Compares a net with its swapped twin; run as a program it writes the table of docs/caffe-nets.md."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION", "python")
os.environ.setdefault("GLOG_minloglevel", "2")

import caffe
import numpy as np

from clgraft.caffe_layers.swap import Report, swap_net
from tests.caffe_layers.caffe_nets import TEST, load, written
from tests.caffe_layers.net_styles import STYLES, small
from tests.caffe_layers.session_nets import SessionNet

NUDGE = 2.0**-21  # four units of float32's rounding: what one layer may do to its top
FLOOR = 2e-5  # what one sum of float32 may be off by


@dataclass(frozen=True)
class Comparison:
    """Relative errors (2-norm) of the swapped net, and what rounding alone does to the native one."""

    report: Report
    errors: dict[str, float]
    growth: dict[str, float]

    def limit(self, name: str) -> float:
        """How far `name` may be off: ten times the change of a net whose data and weights were nudged once."""
        return FLOOR + 10 * self.growth[name]

    @property
    def failures(self) -> list[str]:
        """What is off by more than its limit, or is not a number."""
        return [f"{n}: {e:.1e} > {self.limit(n):.1e}" for n, e in self.errors.items() if not e <= self.limit(n)]


def compare_nets(text: str, weights: str, seed: int = 20, regions: bool = False, session: bool = False) -> Comparison:
    """Run a net and its twin on the same data and weights, which travel through a native caffemodel.

    Parameters
    ----------
    text : str
        A net with inputs `data` and `label` and a top `loss`.
    weights : str
        Where the caffemodel is written.
    regions : bool
        Whether the swapped net has regions; the score stays visible.
    session : bool
        Whether the twin is the net without Caffe.
    """
    rng = np.random.default_rng(seed)
    caffe.set_random_seed(seed)
    forced = "force_backward: true\n" + text
    score = load(text, TEST).bottom_names["loss"][0]
    swapped, report = swap_net(forced, regions=regions, keep=[score])
    native, nudged = load(forced, TEST), load(forced, TEST)
    ours = SessionNet(forced, TEST, (score,)) if session else load(swapped, TEST)
    for name, blobs in native.params.items():
        for index, blob in enumerate(blobs):
            if ("bn" in name and index) or ("scale" in name and not index):
                blob.data[...] = rng.uniform(0.8, 1.2, blob.data.shape)
            elif blob.data.ndim == 1:
                blob.data[...] = rng.uniform(-0.1, 0.1, blob.data.shape)
    native.save(weights)
    classes = native.blobs[score].data.shape[1]
    data = rng.normal(size=native.blobs["data"].data.shape).astype(np.float32)
    label = rng.integers(0, classes, native.blobs["label"].data.shape)
    for net in (native, ours, nudged):
        net.copy_from(weights)
        net.blobs["data"].data[...] = data
        net.blobs["label"].data[...] = label
    for array in (nudged.blobs["data"].data, *(blob.data for blobs in nudged.params.values() for blob in blobs)):
        array *= 1 + NUDGE * rng.choice([-1, 1], array.shape)
    native_values, our_values, nudged_values = (run(net) for net in (native, ours, nudged))
    assert list(native_values) == list(our_values)
    silent = [name for name, value in native_values.items() if not value.any()]
    assert not silent, f"nothing to compare in {silent}"
    return Comparison(
        report,
        {name: distance(our_values[name], value) for name, value in native_values.items()},
        {name: distance(nudged_values[name], value) for name, value in native_values.items()},
    )


def run(net: Any) -> dict[str, np.ndarray]:
    """Go forward and back; return the loss, the score it is of, the input's gradient and every parameter's."""
    for blobs in net.params.values():
        for blob in blobs:
            blob.diff[...] = 0
    net.forward()
    net.blobs["loss"].diff[...] = 1
    net.backward()
    score = net.bottom_names["loss"][0]
    values = {"loss": net.blobs["loss"].data, score: net.blobs[score].data, "gradient of data": net.blobs["data"].diff}
    for name, blobs in net.params.items():
        if "bn" not in name:  # statistics have no gradient
            values.update({f"gradient of {name}[{index}]": blob.diff for index, blob in enumerate(blobs)})
    return {name: value.astype(np.float64) for name, value in values.items()}


def distance(value: np.ndarray, reference: np.ndarray) -> float:
    """Relative distance in the 2-norm; of two arrays of zeros 0."""
    scale = float(np.linalg.norm(reference))
    return float(np.linalg.norm(value - reference)) / (scale or 1)


def operations(net: Any) -> dict[str, float]:
    """Return the operations of each layer: twice the products of layers with weights, else one for each value."""
    counts = {}
    for name, layer in zip(net._layer_names, net.layers):
        tops = sum(net.blobs[top].data.size for top in net.top_names[name])
        counts[name] = float(tops)
        if layer.type in ("Convolution", "InnerProduct"):
            counts[name] = 2.0 * tops * layer.blobs[0].data.size / layer.blobs[0].shape[0]
        elif layer.type == "Deconvolution":
            bottoms = sum(net.blobs[bottom].data.size for bottom in net.bottom_names[name])
            counts[name] = 2.0 * bottoms * layer.blobs[0].data.size / layer.blobs[0].shape[0]
    return counts


def table() -> str:
    """Return the rows of docs/caffe-nets.md."""
    lines = [
        "| style | layers replaced | arithmetic replaced | left alone | output | worst gradient | its limit |",
        "|---|---|---|---|---|---|---|",
    ]
    for style in STYLES:
        with written("", ".caffemodel") as weights:
            got = compare_nets(small(style), weights)
        count = operations(load(small(style), TEST))
        computing = [row for row in got.report.rows if row.kind not in ("Input", "Data")]
        became = [row for row in computing if row.became]
        share = sum(count[row.name] for row in became) / sum(count[row.name] for row in computing)
        left = ", ".join(sorted({row.kind for row in computing if not row.became})) or "none"
        worst = max((name for name in got.errors if name.startswith("gradient")), key=got.errors.__getitem__)
        output = max(error for name, error in got.errors.items() if not name.startswith("gradient"))
        lines.append(
            f"| {style} | {len(became)} of {len(computing)} | {100 * share:.1f} % | {left} | {output:.1e} "
            f"| {got.errors[worst]:.1e} | {got.limit(worst):.1e} |" + (" FAILS" if got.failures else "")
        )
    return "\n".join(lines)


if __name__ == "__main__":
    caffe.set_mode_cpu()
    print(table())
