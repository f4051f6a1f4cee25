"""Layer norm, group norm, instance norm and L2 normalisation compared with MXNet's own."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon

import clgraft.mxnet_ops as ops
from clgraft import core
from tests.mxnet_ops.operator_checks import MODES, assert_close, compare, evaluate, numeric_gradients, random


def pair(name: str, **keys):
    inputs = [mx.sym.var("data")] + [mx.sym.var(key) for key in ("gamma", "beta") if name != "L2Normalization"]
    native = getattr(mx.sym, name)(*inputs, name="op", **keys)
    swapped, report = ops.swap_symbol(native)
    assert len(report.replaced) == 1 and not report.kept
    return swapped, native


def values(rng, shape, axis, dtype="float32"):
    arrays = {"data": 2 * random(rng, *shape, dtype=dtype) + 5}
    if axis is not None:
        arrays.update({name: random(rng, shape[axis], dtype=dtype) for name in ("gamma", "beta")})
    return arrays


@pytest.mark.parametrize(
    "shape, axis", [((7, 33), -1), ((2, 5, 64), -1), ((3, 8, 5, 4), 1), ((6, 3, 2), 0), ((4, 2), 1)], ids=str
)
def test_layer_norm_is_mxnets(shape, axis, rng):
    """In double precision: MXNet's own in single precision loses digits where the mean is large."""
    arrays = values(rng, shape, axis, "float64")
    compare(*pair("LayerNorm", axis=axis, eps=0.01), arrays, rng, dtype="float64")


@pytest.mark.parametrize("shape", [(2, 3, 11), (2, 5, 6, 7), (1, 4, 3, 2, 5)], ids=str)
def test_instance_norm_is_mxnets(shape, rng):
    compare(*pair("InstanceNorm", eps=0.01), values(rng, shape, 1), rng)
    compare(*pair("InstanceNorm"), values(rng, shape, 1), rng, requests=["write"])


@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize("shape", [(2, 6, 11), (3, 6, 5, 7), (1, 12, 3, 2, 3)], ids=str)
def test_group_norm_is_mxnets(shape, groups, rng):
    vectors = {name: random(rng, groups, dtype="float64") for name in ("gamma", "beta")}
    arrays = {"data": 2 * random(rng, *shape, dtype="float64") + 5, **vectors}
    keys = {"num_groups": groups, "eps": 0.01} if groups > 1 else {}
    compare(*pair("GroupNorm", **keys), arrays, rng, dtype="float64")
    single = {name: value.astype("float32") for name, value in arrays.items()}
    got, expected = (evaluate(s, a).outputs[0] for s, a in zip(pair("GroupNorm", **keys), (single, arrays)))
    assert_close(got, expected, "float32")


@pytest.mark.parametrize("mode", ["instance", "channel", "spatial"])
@pytest.mark.parametrize("shape", [(3, 5, 7, 2), (2, 16, 9)], ids=str)
def test_l2_normalization_is_mxnets(shape, mode, rng):
    compare(*pair("L2Normalization", mode=mode, eps=0.1), values(rng, shape, None), rng)
    compare(*pair("L2Normalization", mode=mode), values(rng, shape, None, "float64"), rng, dtype="float64")


@pytest.mark.parametrize("name, keys", [("LayerNorm", {"axis": 1}), ("InstanceNorm", {}), ("L2Normalization", {})])
def test_numeric_gradients(name, keys, rng):
    numeric_gradients(pair(name, **keys)[0], values(rng, (3, 4, 6), None if "L2" in name else 1, "float64"), rng)


# the axes of mean and variance of data (2, 3, ...), and of gamma
FAR = {
    "ocl_layer_norm": ({"axis": 1}, (1,), (3, 1, 1)),
    "ocl_group_norm": ({"num_groups": 1}, (1, 2, 3), (1, 1, 1)),
    "ocl_instance_norm": ({}, (2, 3), (3, 1, 1)),
    "ocl_batchnorm": ({"fix_gamma": False}, (0, 2, 3), (3, 1, 1)),
}


@pytest.mark.parametrize("size", [(7, 9), (56, 56)], ids=str)
@pytest.mark.parametrize("op_type", FAR)
def test_a_mean_far_from_the_values(op_type, size, rng):
    """The variance is that of differences: single precision keeps its digits in every norm."""
    keys, axes, spread = FAR[op_type]
    x = (1e4 + random(rng, 2, 3, *size, dtype="float64")).astype("float32")
    dy = random(rng, *x.shape)
    gamma, beta = (random(rng, *spread) for _ in range(2))
    symbol = mx.sym.Custom(*(mx.sym.var(n) for n in ("x", "g", "b")), op_type=op_type, eps=1e-5, name="n", **keys)
    states = {"n_moving_mean": np.zeros(3, "float32"), "n_moving_var": np.ones(3, "float32")}
    found = evaluate(
        symbol,
        {"x": x, "g": gamma.ravel(), "b": beta.ravel()},
        [dy],
        auxiliary=states if op_type == "ocl_batchnorm" else None,
    )
    wide = x.astype("float64")
    difference = wide - wide.mean(axes, keepdims=True)
    inverse = 1 / np.sqrt((difference**2).mean(axes, keepdims=True) + np.float32(1e-5))
    normed, flow = difference * inverse, dy.astype("float64") * gamma
    along = (flow * normed).mean(axes, keepdims=True)
    gradient = inverse * (flow - flow.mean(axes, keepdims=True) - normed * along)
    expected = normed * gamma + beta
    assert np.abs(found.outputs[0] - expected).max() <= 1e-6 * np.abs(expected).max()
    # a batch norm keeps its mean in single precision until backward
    allowed = 1e-4 if op_type == "ocl_batchnorm" else 1e-6
    assert np.abs(found.gradients["x"] - gradient).max() <= allowed * np.abs(gradient).max()


@pytest.mark.parametrize("mode", MODES)
def test_gluon_blocks_are_swapped(mode, rng):
    x, found = mx.nd.array(random(rng, 4, 6, 5)), []
    for swapped in (False, True):
        net = gluon.nn.HybridSequential()
        net.add(gluon.nn.InstanceNorm(in_channels=6), gluon.nn.LayerNorm(in_channels=5), gluon.nn.GroupNorm(3))
        net.initialize()
        if swapped:
            report = ops.swap_block(net)
            assert [row.became for row in report.replaced] == [
                "ocl_instance_norm",
                "ocl_layer_norm",
                "ocl_group_norm",
            ]
        if mode != "plain":
            net.hybridize(static_alloc=mode == "static", static_shape=mode == "static")
        x.attach_grad()
        with mx.autograd.record():
            y = net(x)
        y.backward(y + mx.nd.arange(5))
        found.append((y.asnumpy(), x.grad.asnumpy()))
    for got, expected in zip(found[1], found[0]):
        assert_close(got, expected, what=mode)


@pytest.mark.parametrize(
    "op_type, keys, shape, part",
    [
        ("ocl_layer_norm", {"axis": 3}, (2, 3), "axis 3"),
        ("ocl_layer_norm", {"output_mean_var": True}, (2, 3), "output_mean_var True"),
        ("ocl_instance_norm", {}, (2, 3), "at least 3 axes"),
        ("ocl_group_norm", {}, (2, 3), "at least 3 axes"),
        ("ocl_group_norm", {"num_groups": 2}, (2, 3, 4), "num_groups 2"),
        ("ocl_group_norm", {"num_groups": 0}, (2, 3, 4), "num_groups 0"),
        ("ocl_group_norm", {"output_mean_var": True}, (2, 3, 4), "output_mean_var True"),
        ("ocl_l2_normalization", {"mode": "spatial"}, (2, 3), "at least 3 axes"),
        ("ocl_l2_normalization", {"mode": "global"}, (2, 3), "'global'"),
    ],
)
def test_what_is_refused(op_type, keys, shape, part):
    arrays = [mx.nd.zeros(shape)] + ([] if "l2" in op_type else [mx.nd.zeros((3,))] * 2)
    with pytest.raises(core.ProblemError) as caught:
        mx.nd.Custom(*arrays, op_type=op_type, **keys)
    assert f"[{op_type}] got " in str(caught.value) and part in str(caught.value)


@pytest.mark.parametrize(
    "op_type, keys, size",
    [
        ("ocl_layer_norm", {}, 5),
        ("ocl_group_norm", {"num_groups": 2}, 2),
        ("ocl_instance_norm", {}, 4),
        ("ocl_l2_normalization", {}, 0),
        ("ocl_lrn", {"nsize": 4}, 0),
    ],
)
def test_no_examples(op_type, keys, size):
    with mx.util.np_shape(True):
        arrays = [mx.nd.zeros((0, 4, 5)), *(mx.nd.ones(size) for _ in range(2 if size else 0))]
        for array in arrays:
            array.attach_grad()
            array.grad[:] = np.nan
        with mx.autograd.record():
            y = mx.nd.Custom(*arrays, op_type=op_type, **keys)
        y.backward()
        assert y.shape == (0, 4, 5)
        assert all((array.grad.asnumpy() == 0).all() for array in arrays[1:])
