"""Whole nets in MXNet: inference and training steps of Gluon's model zoo, as they are, swapped, and in regions.

Inference is measured with frozen parameters, too; in training they make no difference. Training steps are measured with
MXNet's SGD on all sides, and in regions also with clgraft's, which `clgraft.mxnet_ops.Trainer` uses.

With ``CLGRAFT_PRECISION=bfloat16`` MXNet infers also what its `amp` converts to that type, and is the faster one. On
CPUs it has no other mixed precision that is fast; its steps stay in float32.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import clgraft.mxnet_ops  # noqa: F401  # isort: skip  (before MXNet, which reads what it sets)
import mxnet as mx
import numpy as np
from mxnet.contrib import amp
from mxnet.gluon.model_zoo import vision

from clgraft.core.planning.precision import mixed_precision
from clgraft.mxnet_ops import swap_block
from clgraft.plugins.command_line.bench import floors, peaks
from clgraft.plugins.command_line.bench.peers import net_batches
from clgraft.plugins.command_line.bench.results import Measurement
from clgraft.plugins.command_line.bench.timing import compare, fastest

NETS = {
    "alexnet": "alexnet",
    "resnet18": "resnet18_v1",
    "resnet50": "resnet50_v1",
    "vgg16": "vgg16",
    "mobilenet": "mobilenet1.0",
    "mobilenetv2": "mobilenetv2_1.0",
}
THEIRS = NATIVE, AMP = "native", "amp"
SIDES = ("clgraft", "regions", "frozen")  # ours
BFLOAT16 = "bfloat16"
WAYS = {  # of each direction: the net and its call
    "inference": {side: (side, "inference") for side in (NATIVE, *SIDES)},
    "training": {**{side: (side, "training") for side in (NATIVE, *SIDES[:-1])}, "updated": ("regions", "updated")},
}
MIXED_WAYS = {("inference", BFLOAT16): {AMP: (AMP, "inference")}}
SETTINGS = {"learning_rate": 1e-4, "momentum": 0.9}
MOVED = 5  # arrays of a parameter's size that its update moves: weight, momentum, both read and written, and gradient
PIXELS, CLASSES = 224, 1000


def measure(
    names: Sequence[str],
    batches: Sequence[int],
    seconds: float = 20.0,
    least: int = 3,
    directions: Collection[str] = tuple(WAYS),
) -> Iterator[Measurement]:
    """Measure nets, a row at a time: inference and training, for each batch size.

    A training step is forward, softmax cross entropy, backward and the update by SGD with momentum. Ours is
    measured operator by operator, with regions, in inference with frozen parameters, and in training with `ocl_sgd`.

    Parameters
    ----------
    names : sequence of str
        Of `NETS`.
    batches : sequence of int
    seconds : float
        For each row.
    least : int
        The least number of steps.
    directions : collection of str
        Of `WAYS`.

    Raises
    ------
    PluginError
        If a name is not in `NETS`.
    """
    for name, batch in net_batches(names, batches, NETS):
        wanted = [what for what in WAYS if what in directions]
        ways = {what: {**WAYS[what], **MIXED_WAYS.get((what, mixed_precision()), {})} for what in wanted}
        needed = {side for what in wanted for side, _ in ways[what].values()}
        sides = {side: _Net(NETS[name], batch, side) for side in (*THEIRS, *SIDES) if side in needed}
        for what in wanted:
            calls = {way: sides[side].calls[call] for way, (side, call) in ways[what].items()}
            times = compare(calls, seconds, least)
            way, natives = fastest(times, [one for one in THEIRS if one in calls])
            a, b = times[way], times["clgraft"]
            text = f"{NETS[name]} batch {batch}"
            figures = (a.median, b.median, a.spread, b.spread)
            floor = {way: floors.of(call) for way, call in calls.items() if way not in THEIRS}
            if "updated" in floor:  # the update is ours, and no plan of the core's
                floor["updated"] += MOVED * sides["regions"].learned_bytes() / peaks.here().bandwidth
            more = {way: times[way].median for way in ("regions", "frozen", "updated") if way in times}
            more |= {f"{way}_floor": floor[way] for way in more}
            yield Measurement(
                *("nets", text, text, "net", what, "mxnet", *figures),
                floor=floor["clgraft"],
                uncounted=len(sides["regions"].report.kept),
                **natives,
                **more,
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
            if side == AMP:
                net = amp.convert_hybrid_block(net, target_dtype=BFLOAT16, ctx=mx.cpu())
            elif side != NATIVE:
                self.report = swap_block(net, regions=side != "clgraft", frozen=side == "frozen")
            if side != NATIVE:
                net.hybridize(static_alloc=True, static_shape=True)
                net(x).wait_to_read()
        loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()
        self._parameters = net.collect_params()

        def inference() -> None:
            net(x).wait_to_read()

        def training(optimizer: str) -> Callable[[], None]:
            trainer = mx.gluon.Trainer(self._parameters, optimizer, SETTINGS)

            def step() -> None:
                with mx.autograd.record():
                    value = loss(net(x), labels)
                value.backward()
                trainer.step(batch)
                mx.nd.waitall()

            return step

        self.calls: dict[str, Callable[[], None]] = {
            **{"inference": inference, "training": training("sgd"), "updated": training("ocl_sgd")},
        }

    def learned_bytes(self) -> int:
        """Return the size of the parameters that a step updates."""
        learned = (one.data() for one in self._parameters.values() if one.grad_req != "null")
        return sum(array.size * np.dtype(array.dtype).itemsize for array in learned)
