"""Whole nets in MXNet: inference and training steps of Gluon's model zoo, as they are, swapped, and in regions.

Inference is measured with frozen parameters, too; in training they make no difference.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import clgraft.mxnet_ops  # noqa: F401  # isort: skip  (before MXNet, which reads what it sets)
import mxnet as mx
import numpy as np
from mxnet.gluon.model_zoo import vision

from clgraft.mxnet_ops import swap_block
from clgraft.plugins.command_line.bench import floors
from clgraft.plugins.command_line.bench.peers import net_batches
from clgraft.plugins.command_line.bench.results import Measurement
from clgraft.plugins.command_line.bench.timing import compare

NETS = {
    "alexnet": "alexnet",
    "resnet18": "resnet18_v1",
    "resnet50": "resnet50_v1",
    "vgg16": "vgg16",
    "mobilenet": "mobilenet1.0",
    "mobilenetv2": "mobilenetv2_1.0",
}
SIDES = ("native", "clgraft", "regions", "frozen")
PIXELS, CLASSES = 224, 1000


def measure(
    names: Sequence[str], batches: Sequence[int], seconds: float = 20.0, least: int = 5
) -> Iterator[Measurement]:
    """Measure nets, a row at a time: inference and training, for each batch size.

    A training step is forward, softmax cross entropy, backward and the update by SGD with momentum. Ours is
    measured operator by operator, with regions, and in inference with frozen parameters.

    Parameters
    ----------
    names : sequence of str
        Of `NETS`.
    batches : sequence of int
    seconds : float
        For each row.
    least : int
        The least number of steps.

    Raises
    ------
    PluginError
        If a name is not in `NETS`.
    """
    for name, batch in net_batches(names, batches, NETS):
        sides = {side: _Net(NETS[name], batch, side) for side in SIDES}
        for what in ("inference", "training"):
            wanted = SIDES if what == "inference" else SIDES[:-1]
            times = compare({side: sides[side].calls[what] for side in wanted}, seconds, least)
            a, b, c = times["native"], times["clgraft"], times["regions"]
            text = f"{NETS[name]} batch {batch}"
            figures = (a.median, b.median, a.spread, b.spread)
            frozen = times["frozen"].median if "frozen" in times else 0.0
            floor = {side: floors.of(sides[side].calls[what]) for side in wanted if side != "native"}
            yield Measurement(
                *("nets", text, text, "net", what, "mxnet", *figures),
                regions=c.median,
                frozen=frozen,
                floor=floor["clgraft"],
                regions_floor=floor["regions"],
                frozen_floor=floor.get("frozen", 0.0),
                uncounted=len(sides["regions"].report.kept),
            )
        del sides
        gc.collect()


class _Net:
    """One side of a net: its steps."""

    def __init__(self, name: str, batch: int, side: str) -> None:
        mx.random.seed(1)
        np.random.seed(1)
        net: Any = vision.get_model(name, classes=CLASSES)
        net.initialize(mx.init.Xavier())
        rng = np.random.default_rng(2)
        x = mx.nd.array(rng.standard_normal((batch, 3, PIXELS, PIXELS)).astype(np.float32))
        labels = mx.nd.array(rng.integers(0, CLASSES, batch).astype(np.float32))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # compilers warn
            net.hybridize(static_alloc=True, static_shape=True)
            net(x).wait_to_read()  # shapes have to be known before operators are replaced
            if side != "native":
                self.report = swap_block(net, regions=side != "clgraft", frozen=side == "frozen")
                net.hybridize(static_alloc=True, static_shape=True)
                net(x).wait_to_read()
        loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()
        trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 1e-4, "momentum": 0.9})

        def inference() -> None:
            net(x).wait_to_read()

        def training() -> None:
            with mx.autograd.record():
                value = loss(net(x), labels)
            value.backward()
            trainer.step(batch)
            mx.nd.waitall()

        self.calls: dict[str, Callable[[], None]] = {"inference": inference, "training": training}
