"""Generates small nets with several losses, from a seed, and compares what Caffe's layers and ours compute.

    python -m tests.caffe_layers.generated_nets FIRST COUNT WAY...

compares the nets of some seeds in ways of `WAYS`, and prints what differs. C++ layers need their library; for regions
in nets that are not swapped it is preloaded.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

SEQUENCE, STREAMS, WIDE = 3, 2, 4  # of recurrent layers: steps, streams and numbers in each
BATCHES = (3, 3, 2)  # examples in each pass; the last pass comes with new shapes and without a call of `reshape`
CLASSES = 5
WEIGHTS = ("", "", "0", "1", "0.5", "-0.75")  # the empty one is Caffe's default
CONVOLUTION = "convolution_param { num_output: 4 kernel_size: 3 pad: 1 }"
DENSE = f"inner_product_param {{ num_output: {CLASSES} }}"
WAYS = (
    *("swapped", "swapped with regions"),  # Python layers
    *("types", "types with regions"),  # C++ layers by their types
    *("replaced", "replaced with regions"),  # C++ layers in place of Caffe's
)
TOLERANCE = 2e-4  # of the largest value


class Net:
    """A net that grows layer by layer from drawn numbers.

    Attributes
    ----------
    text : str
    values : list of (str, tuple)
        Blobs that further layers may read, with their shapes but for the number of examples.
    losses : int
        Number of tops whose loss weight is not 0.
    own : str
        A type that stays Caffe's; empty for none.
    """

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.forced = self.draw.random() < 0.5
        self.text = "force_backward: true\n" if self.forced else ""
        self.own = self.draw.choice(("", "TanH", "Sigmoid", "Power"))
        self.count = self.losses = 0
        self.values: list = []
        self._input("data", (4, 6, 6), self.values)
        self._input("label")
        self._input("target", (CLASSES,))
        self.values.append((self.layer("Convolution", ["data"], CONVOLUTION), (4, 6, 6)))
        for _ in range(self.draw.randint(3, 6)):
            self._grow()
            if self.draw.random() < 0.6:
                self._lose()
        if self.draw.random() < 0.5:
            self._recur()
        self._lose("SoftmaxWithLoss")

    def layer(
        self, kind: str, bottoms: list, parameters: str = "", top: str | None = None, name: str | None = None
    ) -> str:
        """Add a layer; return its top. An empty one is left to Caffe."""
        self.count += 1
        name = name or f"{kind.lower()}{self.count}"
        top = name if top is None else top
        links = [f'bottom: "{bottom}"' for bottom in bottoms] + [f'top: "{top}"'] * bool(top)
        self.text += f'layer {{ name: "{name}" type: "{kind}" {" ".join(links)} {parameters} }}\n'
        return top

    def _input(self, name: str, shape: tuple = (), values: list | None = None, batch: tuple = (BATCHES[0],)) -> None:
        sizes = " ".join(f"dim: {size}" for size in (*batch, *shape))
        self.text += f'layer {{ name: "{name}" type: "Input" top: "{name}" input_param {{ shape {{ {sizes} }} }} }}\n'
        if values is not None:
            values.append((name, shape))

    def _one(self, axes: int = 0) -> tuple:
        return self.draw.choice([each for each in self.values if not axes or len(each[1]) == axes])

    def _grow(self) -> None:
        blob, shape = self._one(3 if self.draw.random() < 0.7 else 0)
        kind = self.draw.choice(("Convolution", "Pooling", "TanH", "Sigmoid", "Eltwise", "Concat", "InnerProduct"))
        if len(shape) < 3 and kind in ("Convolution", "Pooling"):
            kind = "Power"
        more = self.draw.random() < 0.2 and kind not in ("Convolution", "InnerProduct")
        weight = f"loss_weight: {self.draw.choice(('0.01', '-0.02'))} " * more  # of a value that others may read
        self.losses += more
        if kind == "Convolution":
            found = self.layer(kind, [blob], CONVOLUTION), (4, *shape[1:])
        elif kind == "Pooling":
            found = (
                self.layer(kind, [blob], weight + "pooling_param { pool: AVE kernel_size: 3 stride: 1 pad: 1 }"),
                shape,
            )
        elif kind in ("Eltwise", "Concat"):
            other = self.draw.choice([each for each, its in self.values if its == shape])
            found = self.layer(kind, [blob, other], weight), (shape[0] * (1 + (kind == "Concat")), *shape[1:])
        elif kind == "InnerProduct":
            shared = 'param { name: "w" } param { name: "b" } ' * (shape == (4, 6, 6))
            found = self.layer(kind, [blob], shared + DENSE), (CLASSES,)
        else:
            found = self.layer(kind, [blob], weight), shape
        if kind in ("Convolution", "InnerProduct") and self.draw.random() < 0.6:
            self.layer("ReLU", [found[0]], "relu_param { negative_slope: 0.2 }", found[0])
        self.values.append(found)

    def _lose(self, kind: str = "") -> None:
        kinds = (
            ("SoftmaxWithLoss",) * 2 + ("SigmoidCrossEntropyLoss", "EuclideanLoss", "Reduction") + ("HingeLoss",) * 2
        )
        kind = kind or self.draw.choice((*kinds, "Silence", "ArgMax"))
        blob, _ = self._one()
        if kind == "Silence":
            self.layer(kind, [blob], top="")
            return
        if kind == "ArgMax":  # has no gradient, and no layer reads it
            if not self.forced:
                self.layer(kind, [blob])
            return
        weight = self.draw.choice(WEIGHTS)
        given = f"loss_weight: {weight} " * bool(weight)
        if kind == "Reduction":
            weight = weight or "0.3"
            self.layer(kind, [blob], f"loss_weight: {weight} reduction_param {{ operation: MEAN }}")
        else:
            score = self.layer("InnerProduct", [blob], DENSE)
            other = "label" if kind in ("SoftmaxWithLoss", "HingeLoss") else "target"
            self.layer(kind, [score, other], given, None if self.draw.random() < 0.7 else "")
        self.losses += weight != "0"

    def _recur(self) -> None:
        """Add a recurrent layer with a loss on sequences of its own."""
        self._input("sequence", (WIDE,), batch=(SEQUENCE, STREAMS))
        self._input("cont", batch=(SEQUENCE, STREAMS))
        self._input("words", batch=(SEQUENCE, STREAMS))
        sizes = 'num_output: 6 weight_filler { type: "uniform" min: -0.5 max: 0.5 }'
        first = self.layer("Power", ["sequence"], "power_param { scale: 0.5 }")
        hidden = self.layer(self.draw.choice(("LSTM", "RNN")), [first, "cont"], f"recurrent_param {{ {sizes} }}")
        score = self.layer("InnerProduct", [hidden], DENSE.replace("{", "{ axis: 2", 1))
        self.layer("SoftmaxWithLoss", [score, "words"], "softmax_param { axis: 2 }")
        self.losses += 1


def fill(net, seed: int, batch: int) -> None:
    """Set inputs of so many examples."""
    rng = np.random.default_rng(seed)
    for name in ("data", "label", "target", "sequence", "cont", "words"):
        if name not in net.blobs:
            continue
        blob = net.blobs[name]
        if name in ("data", "label", "target"):
            blob.reshape(batch, *list(blob.shape)[1:])
        if name in ("label", "words"):
            blob.data[...] = rng.integers(0, CLASSES, blob.data.shape)
        elif name == "cont":
            blob.data[...] = rng.integers(0, 2, blob.data.shape)
        elif name == "target":
            blob.data[...] = rng.uniform(0, 1, blob.data.shape)
        else:
            blob.data[...] = rng.standard_normal(blob.data.shape)


def run(net, seed: int) -> dict:
    """Return total losses, outputs, and gradients of inputs and parameters.

    Gradients of parameters add up over two passes, as with `iter_size: 2`.
    """
    rng = np.random.default_rng(seed)
    for blobs in net.params.values():
        for blob in blobs:
            blob.data[...] = rng.uniform(-0.5, 0.5, blob.data.shape)
            blob.diff[...] = 0
    found = {}
    for step, batch in enumerate(BATCHES):
        fill(net, seed * 10 + step, batch)
        found[f"total {step}"] = np.array(net._forward(0, len(net.layers) - 1))
        # `net.outputs` names wrong blobs where two losses have no top
        outputs = [net._blob_names[number] for number in net._outputs]
        found.update({f"{name} {step}": net.blobs[name].data.copy() for name in outputs})
        net.backward()
        for name in ("data", "sequence"):
            if name in net.blobs:
                found[f"{name} gradient {step}"] = net.blobs[name].diff.copy()
        for name, blobs in net.params.items():
            for number, blob in enumerate(blobs):
                found[f"{name}[{number}] gradient {step}"] = blob.diff.copy()
    return found


@contextlib.contextmanager
def made(net: Net, way: str) -> Iterator[Any]:
    """Make a net with Caffe's own layers, if `way` is empty, or with ours."""
    from clgraft.caffe_layers.swap import swap_net
    from tests.caffe_layers.caffe_nets import load

    if not way.startswith("replaced"):
        choice = {"regions": "regions" in way, "native": "types" in way, "exclude": [net.own] * bool(net.own)}
        yield load(swap_net(net.text, **choice)[0] if way else net.text)
        return
    from clgraft.caffe_layers import native
    from clgraft.caffe_layers.library import build

    native.replace([kind for kind, _, replaces in build.types() if replaces and kind != net.own])
    before = native.served()
    if "regions" in way:
        os.environ["CLGRAFT_CAFFE_REGIONS"] = "none"
    try:
        yield load(net.text)
        assert native.served().ours > before.ours and native.served().handed_over == before.handed_over
    finally:
        os.environ.pop("CLGRAFT_CAFFE_REGIONS", None)
        native.restore()


def compare(seed: int, way: str) -> tuple:
    """Return what differs between a net with Caffe's own layers and with ours, and how many of its blobs are hidden."""
    net = Net(seed)
    with made(net, "") as own:
        expected = run(own, seed)
    with made(net, way) as ours:
        got = run(ours, seed)
        hidden = [name for name, blob in ours.blobs.items() if blob.count and np.isnan(blob.data).all()]
    found = []
    for name, values in expected.items():
        assert np.isfinite(values).all(), name
        error = np.abs(got[name].astype(np.float64) - values).max()
        if not error <= TOLERANCE * max(0.05, np.abs(values).max()):
            found.append(f"seed {seed}, {way}: {name} is off by {error}, of {np.abs(values).max()}")
    return found, len(hidden)


def main(first: str, count: str, *ways: str) -> None:
    for way in ways:
        hides = 0
        for seed in range(int(first), int(first) + int(count)):
            found, hidden = compare(seed, way)
            for line in found:
                print(line)
            hides += hidden
        print(f"{way}: {'blobs' if hides else 'no blob'} inside of regions")


if __name__ == "__main__":
    main(*sys.argv[1:])
