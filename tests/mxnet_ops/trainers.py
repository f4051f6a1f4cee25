"""Small nets with a trainer, Gluon's or `clgraft.mxnet_ops.Trainer`."""

from __future__ import annotations

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from mxnet.gluon import nn

import clgraft.mxnet_ops as ops
from clgraft.mxnet_ops.engine.residents import resident_of
from tests.mxnet_ops.operator_checks import random

BATCH = 4
STATIC = {"static_alloc": True, "static_shape": True}


def dense(prefix: str = "net_") -> nn.HybridSequential:
    """Return a small net of dense layers, whose shapes follow from the first batch."""
    net = nn.HybridSequential(prefix=prefix)
    with net.name_scope():
        net.add(nn.Dense(6, activation="tanh"), nn.Dense(3))
    return net


def convolutions(prefix: str = "net_") -> nn.HybridSequential:
    """Return a small net with moving statistics."""
    net = nn.HybridSequential(prefix=prefix)
    with net.name_scope():
        net.add(nn.Conv2D(4, 3, padding=1, use_bias=False), nn.BatchNorm(), nn.Activation("relu"), nn.Dense(3))
    return net


def normed(prefix: str = "net_") -> nn.HybridSequential:
    """Return a small net whose batch norm stays float32 when it is cast to float16."""
    net = nn.HybridSequential(prefix=prefix)
    with net.name_scope():
        net.add(nn.Dense(6, use_bias=False), nn.BatchNorm(), nn.Activation("tanh"), nn.Dense(3))
    return net


class Run:
    """A net with its trainer."""

    def __init__(self, make, kind=None, optimizer="sgd", given=None, *, like=None, shape=(5,), **more):
        self.net = make()
        self.net.initialize(mx.init.Xavier())
        if like is not None:
            self.net(mx.nd.zeros((1, *shape)))
            for own, other in zip(self.parameters, like.parameters):
                own.set_data(other.data())
        ops.swap_block(self.net, regions=True, precision=more.pop("precision", None))
        self.net.hybridize(**STATIC)
        if like is None:
            self.net(mx.nd.zeros((1, *shape)))
        self.net.cast(more.pop("dtype", "float32"))
        self.trainer = (kind or ops.Trainer)(self.net.collect_params(), optimizer, dict(given or {}), **more)
        self.loss = gluon.loss.L2Loss()

    @property
    def parameters(self):
        return list(self.net.collect_params().values())

    def backward(self, x, y):
        with autograd.record():
            loss = self.loss(self.net(x), y)
        loss.backward()
        return loss

    def step(self, x, y, **more):
        loss = self.backward(x, y)
        self.trainer.step(BATCH, **more)
        return loss

    @property
    def places(self):
        found = [resident_of(parameter._data[0]) for parameter in self.parameters]
        return {None if one is None else one.place for one in found}


def pair(make=dense, optimizer="sgd", given=None, mxnets=None, **more):
    """Return a run with Gluon's trainer and one with ours, from the same parameters."""
    kept = {key: more.pop(key) for key in ("outside",) if key in more}
    one = Run(make, gluon.Trainer, mxnets or optimizer, given, **more)
    return one, Run(make, ops.Trainer, optimizer, given, like=one, **more, **kept)


def batches(rng, count, shape=(5,)):
    for _ in range(count):
        yield mx.nd.array(random(rng, BATCH, *shape)), mx.nd.array(random(rng, BATCH, 3))


def equal(one, other, rtol=2e-5, atol=2e-6):
    for a, b in zip(one.parameters, other.parameters):
        np.testing.assert_allclose(b.data().asnumpy(), a.data().asnumpy(), rtol, atol, err_msg=a.name)


OPTIMIZERS = [
    ("sgd", {"learning_rate": 0.1}),
    ("sgd", {"learning_rate": 0.1, "momentum": 0.9, "wd": 0.02, "clip_gradient": 0.1, "multi_precision": True}),
    ("nag", {"learning_rate": 0.1, "momentum": 0.9, "wd": 0.02}),
    ("nag", {"learning_rate": 0.1, "clip_gradient": 0.1}),
    ("adam", {"learning_rate": 0.02, "wd": 0.02, "clip_gradient": 0.1, "begin_num_update": 3}),
    ("ocl_adamw", {"learning_rate": 0.02, "wd": 0.02, "clip_gradient": 0.1}),
    ("rmsprop", {"learning_rate": 0.01, "wd": 0.02, "clip_gradient": 0.1}),
    ("rmsprop", {"learning_rate": 0.01, "centered": True}),
    ("adagrad", {"learning_rate": 0.1, "wd": 0.02, "clip_gradient": 0.1}),
    ("adadelta", {"wd": 0.002, "clip_gradient": 0.1}),
]
