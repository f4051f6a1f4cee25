"""Small nets with frozen parameters, for their tests."""

from __future__ import annotations

import gc

import mxnet as mx
import numpy as np
from mxnet import gluon
from mxnet.gluon import nn

import clgraft.mxnet_ops as ops
from clgraft.mxnet_ops.regions import held
from tests.mxnet_ops.operator_checks import assert_close, random

SHAPE = (2, 3, 8, 8)


def small(norm: bool = True, **shared) -> nn.HybridSequential:
    """Return a net whose weights are prepared, folded or read as they are."""
    net = nn.HybridSequential(prefix="net_", **shared)
    with net.name_scope():
        net.add(nn.Conv2D(8, 3, padding=1), *[nn.BatchNorm()] * norm, nn.Activation("relu"))
        net.add(nn.Conv2D(8, 3, padding=1, groups=8), nn.Conv2D(16, 1), nn.Dense(5))
    return net


def make(frozen: bool, source: gluon.Block | None = None, dtype: str = "float32", **hybrid) -> nn.HybridSequential:
    """Return a swapped net, with the parameters of another one."""
    net = small(norm=dtype != "float16")  # whose batch norms Gluon keeps in float32
    report = ops.swap_block(net, regions=True, frozen=frozen)
    assert bool(report.frozen) == frozen
    net.initialize(mx.init.Xavier(magnitude=3))
    net.cast(dtype)
    net.hybridize(**hybrid)
    net(mx.nd.zeros(SHAPE, dtype=dtype))
    own = net.collect_params().values()
    rng = np.random.default_rng(3)
    values = (
        [0.3 * random(rng, *p.shape) for p in own]
        if source is None
        else [p.data() for p in source.collect_params().values()]
    )
    for parameter, value in zip(own, values):
        positive = source is None and parameter.name.endswith(("gamma", "var"))
        parameter.set_data(mx.nd.array(0.5 + np.abs(value) if positive else value, dtype=dtype))
    return net


def image(rng, batch: int = 2, dtype: str = "float32") -> mx.nd.NDArray:
    return mx.nd.array(random(rng, batch, *SHAPE[1:], dtype=dtype), dtype=dtype)


def write_unseen(array: mx.nd.NDArray) -> None:
    """Change an array in a way that nothing notices."""
    mx.nd.sgd_update(array, mx.nd.ones_like(array), lr=0.5, out=array)
    array.wait_to_read()


def equal(got, expected, dtype: str = "float32") -> None:
    assert_close(got.asnumpy(), expected.asnumpy(), dtype)


def expect_held(count: int) -> None:
    """Check how many regions have constants."""
    gc.collect()
    assert len(held._known) == count
