"""Gluon blocks that compute a net and its loss: labels enter their regions, whatever a graph says of their types."""

from __future__ import annotations

import json

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

import clgraft.mxnet_ops as ops
from tests.mxnet_ops.operator_checks import random
from tests.mxnet_ops.trainers import BATCH, STATIC

CLASSES = 7
LABELS = (0, CLASSES - 1, -2, CLASSES + 3)  # those outside count as the first and the last class


class WithLoss(gluon.HybridBlock):
    """A net of dense layers and a loss."""

    def __init__(self, loss: gluon.loss.Loss) -> None:
        super().__init__(prefix="whole_")
        with self.name_scope():
            self.net, self.loss = nn.HybridSequential(prefix="net_"), loss
            self.net.add(nn.Dense(9, activation="tanh", in_units=5), nn.Dense(CLASSES, in_units=9))

    def hybrid_forward(self, F, x, y):
        return self.loss(self.net(x), y)


def pair(loss=None):
    """Return a block of MXNet's and a swapped one, with the same parameters."""
    blocks = [WithLoss(loss or gluon.loss.SoftmaxCrossEntropyLoss()) for _ in range(2)]
    for block in blocks:
        block.initialize(mx.init.Xavier())
        block.hybridize(**STATIC)
    for own, other in zip(*(block.collect_params().values() for block in blocks)):
        other.set_data(own.data())
    ops.swap_block(blocks[1])
    return blocks


def operators(block) -> list[str]:
    """Return what a block's traced graph consists of."""
    nodes = json.loads(block._cached_graph[1].tojson())["nodes"]
    return [node.get("attrs", {}).get("op_type", node["op"]) for node in nodes if node["op"] != "null"]


def results(block, x, y) -> list[np.ndarray]:
    """Return the losses and the gradients of all parameters."""
    with autograd.record():
        loss = block(x, y)
    loss.backward()
    return [array.asnumpy() for array in (loss, *(p.grad() for p in block.collect_params().values()))]


def data(rng, dtype="float32", labels="float32"):
    return mx.nd.array(random(rng, BATCH, 5), dtype=dtype), mx.nd.array(LABELS, dtype=labels)


@pytest.mark.parametrize("weight", [None, 0.5])
def test_a_loss_is_in_the_region_of_its_net(rng, weight):
    native, swapped = pair(gluon.loss.SoftmaxCrossEntropyLoss(weight=weight))
    x, y = data(rng)
    for a, b in zip(results(native, x, y), results(swapped, x, y)):
        np.testing.assert_allclose(b, a, 1e-5, 1e-5)
    assert operators(swapped) == ["ocl_region"]


def test_labels_of_another_type_are_mxnets(rng):
    """Also those that come later."""
    native, swapped = pair()
    for labels, inside in (("float32", True), ("int32", False), ("uint8", False)):
        x, y = data(rng)[0], mx.nd.array(np.arange(BATCH), dtype=labels)
        for a, b in zip(results(native, x, y), results(swapped, x, y)):
            np.testing.assert_allclose(b, a, 1e-5, 1e-5)
        assert ("pick" in operators(swapped)) is not inside


def test_labels_next_to_data_in_half_precision(rng):
    """MXNet itself has no dense layers of float16: the reference is float32."""
    native, swapped = pair()
    x, y = data(rng)
    expected = results(native, x, y)
    swapped.cast("float16")
    for a, b in zip(expected, results(swapped, x.astype("float16"), y)):
        np.testing.assert_allclose(b, a, 1e-2, 5e-3)
    assert "pick" in operators(swapped)


def test_only_inputs_and_the_loss_cross_the_bus(staged, rng):
    block = pair()[1]
    trainer = ops.Trainer(block.collect_params(), "sgd", {"learning_rate": 0.1})
    x, y = data(rng)

    def step() -> float:
        with autograd.record():
            loss = block(x, y)
        loss.backward()
        trainer.step(BATCH)
        return float(loss.mean().asscalar())

    losses = [step() for _ in range(3)]
    before = staged.counters()
    losses.append(step())
    after = staged.counters()
    assert after["bytes_to_host"] - before["bytes_to_host"] <= 4 * BATCH
    assert after["bytes_to_device"] - before["bytes_to_device"] <= 4 * (x.size + 2 * y.size)
    assert losses == sorted(losses, reverse=True) and trainer.host == {}
