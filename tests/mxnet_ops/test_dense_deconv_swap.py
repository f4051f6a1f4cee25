"""Swap of nets with deconvolutions and dense layers, as Symbols and as Gluon nets."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon

import clgraft.mxnet_ops as ops
from tests.mxnet_ops.operator_checks import MODES, assert_close, compare, random


def generator() -> gluon.nn.HybridSequential:
    """A net that draws images, in the way of DCGAN."""
    net = gluon.nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(
            gluon.nn.Dense(48, activation="relu"),
            gluon.nn.HybridLambda(lambda F, x: F.reshape(x, (-1, 12, 2, 2))),
            gluon.nn.Conv2DTranspose(8, 4, strides=2, padding=1, activation="relu"),
            gluon.nn.Conv2DTranspose(
                6, 3, strides=(2, 3), output_padding=(1, 2), groups=2, use_bias=False, in_channels=8
            ),
            gluon.nn.Dense(5, flatten=False),
        )
    return net


def step(net, x, head) -> dict:
    data = mx.nd.array(x)
    data.attach_grad()
    with mx.autograd.record():
        y = net(data)
    y.backward(mx.nd.array(head))
    gradients = {name: parameter.grad().asnumpy() for name, parameter in net.collect_params().items()}
    return {"output": y.asnumpy(), "data": data.grad.asnumpy(), **gradients}


@pytest.mark.parametrize("mode", MODES)
def test_gluon_net(mode, rng, tmp_path):
    mx.random.seed(3)
    native = generator()
    native.initialize(mx.init.Xavier())
    x = random(rng, 3, 10)
    head = random(rng, *native(mx.nd.array(x)).shape)
    expected = step(native, x, head)
    native.save_parameters(str(tmp_path / "net.params"))
    ours = generator()
    ours.load_parameters(str(tmp_path / "net.params"))
    report = ops.swap_block(ours)
    types = [row.became for row in report.rows]
    assert types.count("ocl_deconv") == 2 and types.count("ocl_fully_connected") == 2
    if mode != "plain":
        ours.hybridize(static_alloc=mode == "static", static_shape=mode == "static")
    for _ in range(2):
        got = step(ours, x, head)
        assert got.keys() == expected.keys()
        for name, value in expected.items():
            assert_close(got[name], value, what=name)


def symbol() -> mx.sym.Symbol:
    x = mx.sym.Deconvolution(mx.sym.var("data"), kernel=(4, 4), stride=(2, 2), pad=(1, 1), num_filter=6, name="up")
    x = mx.sym.Activation(x, act_type="relu", name="relu")
    x = mx.sym.Deconvolution(x, kernel=(3, 3), num_filter=4, num_group=2, no_bias=False, name="group")
    return mx.sym.FullyConnected(x, num_hidden=7, name="fc")


def test_symbol(rng):
    native = symbol()
    swapped, report = ops.swap_symbol(native)
    assert [row.became for row in report.rows] == ["ocl_deconv", "ocl_activation", "ocl_deconv", "ocl_fully_connected"]
    shapes = native.infer_shape(data=(2, 3, 5, 6))[0]
    assert swapped.infer_shape(data=(2, 3, 5, 6))[0] == shapes
    arrays = {name: random(rng, *shape) for name, shape in zip(native.list_arguments(), shapes)}
    compare(swapped, native, arrays, rng, requests=["write", "add"])
    again = mx.sym.load_json(swapped.tojson())
    assert np.array_equal(
        *(
            s.bind(mx.cpu(), {k: mx.nd.array(v) for k, v in arrays.items()}).forward()[0].asnumpy()
            for s in (swapped, again)
        )
    )


def test_left_alone_with_a_reason():
    data = mx.sym.var("data")
    for native, reason in (
        (mx.sym.Deconvolution(data, kernel=(3, 3), num_filter=2, target_shape=(0, 9), name="n"), "target_shape (0, 9)"),
        (mx.sym.FullyConnected(mx.sym.cast(data, "int32"), num_hidden=2, name="n"), "int32"),
    ):
        _, report = ops.swap_symbol(native)
        assert reason in {row.name: row.reason for row in report.kept}["n"]
