"""Dropout and random slopes in MXNet: rates, gradients exact for the mask, and runs that repeat under a seed."""

from __future__ import annotations

import math

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon

from clgraft.core import ClgraftError
from clgraft.mxnet_ops import swap_block, swap_symbol
from tests.mxnet_ops.operator_checks import MODES, compare, evaluate, random

SHAPE = (8, 16, 17, 19)
SIGMAS = 5


def dropout(**keys):
    return mx.sym.Custom(mx.sym.var("data"), op_type="ocl_dropout", name="d", **keys)


def away_from_zero(rng, *shape, dtype="float32"):
    return (rng.uniform(0.5, 2, shape) * rng.choice([-1, 1], shape)).astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("p", [0.5, 0.1])
def test_rate_scale_and_gradient(p, dtype, rng):
    x, head = (away_from_zero(rng, *SHAPE, dtype=dtype) for _ in range(2))
    got = evaluate(dropout(p=p), {"data": x}, [head])
    y, dx = got.outputs[0], got.gradients["data"]
    kept = y != 0
    assert abs(kept.mean() - (1 - p)) < SIGMAS * math.sqrt(p * (1 - p) / kept.size)
    tolerance = 2e-3 if dtype == "float16" else 1e-6
    np.testing.assert_allclose(y, np.where(kept, x / (1 - p), 0), rtol=tolerance)
    np.testing.assert_allclose(dx, np.where(kept, head / (1 - p), 0), rtol=tolerance)


def test_write_requests_of_the_gradient(rng):
    x, head = (away_from_zero(rng, 5, 77) for _ in range(2))
    symbol = dropout(seed=3)
    plain = evaluate(symbol, {"data": x}, [head])
    added = evaluate(symbol, {"data": x}, [head], requests="add", start=3.0)
    np.testing.assert_array_equal(added.outputs[0], plain.outputs[0])
    np.testing.assert_allclose(added.gradients["data"], plain.gradients["data"] + 3, rtol=1e-6)
    nothing = evaluate(symbol, {"data": x}, [head], requests="null")
    assert np.isnan(nothing.gradients["data"]).all()


@pytest.mark.parametrize("keys", [{"p": 0.3}, {"p": 0}, {"p": 0, "mode": "always"}, {"p": 0.3, "axes": (1,)}], ids=str)
def test_not_training_is_the_identity_as_in_mxnet(keys, rng):
    native = mx.sym.Dropout(mx.sym.var("data"), **keys)
    compare(dropout(**keys), native, {"data": random(rng, 4, 5, 6)}, rng, train=False, requests=["write"])


def test_always_draws(rng):
    x = away_from_zero(rng, *SHAPE)
    got = evaluate(dropout(mode="always"), {"data": x}, [x], train=False)
    assert abs((got.outputs[0] == 0).mean() - 0.5) < 0.01
    np.testing.assert_array_equal(got.outputs[0], got.gradients["data"])


def test_everything_dropped():
    got = evaluate(dropout(p=1), {"data": np.ones((3, 7), "float32")}, [np.ones((3, 7), "float32")])
    assert not got.outputs[0].any() and not got.gradients["data"].any()


@pytest.mark.parametrize("axes", [(0,), (2, 3), (0, 1, 2, 3)], ids=str)
def test_axes_share_the_mask(axes, rng):
    x = away_from_zero(rng, 6, 40, 5, 7)
    kept = evaluate(dropout(axes=axes, seed=1), {"data": x}).outputs[0] != 0
    first = kept[tuple(slice(0, 1) if axis in axes else slice(None) for axis in range(4))]
    assert (kept == first).all()
    if axes != (0, 1, 2, 3):
        assert 0.4 < first.mean() < 0.6


def masks(symbol, count=2):
    executor = symbol.simple_bind(mx.cpu(), data=(64, 128))
    executor.arg_dict["data"][:] = 1
    return [executor.forward(is_train=True)[0].asnumpy().copy() for _ in range(count)]


def test_seed_of_mxnet_repeats_runs():
    mx.random.seed(5)
    first = masks(dropout())
    assert not np.array_equal(*first)
    mx.random.seed(5)
    again = masks(dropout())
    mx.random.seed(6)
    other = masks(dropout())
    assert all(np.array_equal(a, b) for a, b in zip(first, again))
    assert not np.array_equal(first[0], other[0])


def test_a_seed_of_its_own_is_not_mxnets():
    mx.random.seed(5)
    first = masks(dropout(seed=11))
    mx.random.seed(6)
    assert all(np.array_equal(a, b) for a, b in zip(first, masks(dropout(seed=11))))
    assert not np.array_equal(first[0], masks(dropout(seed=12))[0])


def test_operators_of_one_graph_are_independent():
    data = mx.sym.var("data")
    both = mx.sym.Group([mx.sym.Custom(data, op_type="ocl_dropout", name=name) for name in "ab"])
    executor = both.simple_bind(mx.cpu(), data=(256, 256))
    executor.arg_dict["data"][:] = 1
    one, other = (output.asnumpy() for output in executor.forward(is_train=True))
    assert abs((one == other).mean() - 0.5) < SIGMAS * 0.5 / 256


@pytest.mark.parametrize("mode", MODES)
def test_gluon_nets_repeat_and_learn(mode, rng):
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(64), gluon.nn.Dropout(0.4), gluon.nn.Dropout(0.2, axes=(0,)), gluon.nn.Dense(3))
    net.initialize()
    net(mx.nd.ones((2, 8)))
    report = swap_block(net)
    assert sum(row.became == row.graft == "ocl_dropout" for row in report.replaced) == 2
    if mode != "plain":
        net.hybridize(static_alloc=mode == "static", static_shape=mode == "static")
    x = mx.nd.array(random(rng, 32, 8))
    found = []
    for seed in (1, 1, 2):
        mx.random.seed(seed)
        for _ in range(2):
            with autograd.record():
                y = net(x)
            y.backward()
            found.append((y.asnumpy(), net[0].weight.grad().asnumpy()))
    for step in (0, 1):
        for one, other in zip(found[step], found[2 + step]):
            np.testing.assert_array_equal(one, other)
    assert not np.array_equal(found[0][0], found[1][0]) and not np.array_equal(found[0][0], found[4][0])
    np.testing.assert_array_equal(net(x).asnumpy(), net(x).asnumpy())


def test_swap_of_a_symbol(rng):
    x = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=8, name="fc")
    native = mx.sym.LeakyReLU(mx.sym.Dropout(x, p=0.3, name="drop"), act_type="rrelu", name="slopes")[0]
    swapped, report = swap_symbol(native)
    assert {row.name: row.became for row in report.replaced if row.name != "fc"} == {
        "drop": "ocl_dropout",
        "slopes": "ocl_activation",
    }
    arrays = {"data": random(rng, 4, 5), "fc_weight": random(rng, 8, 5), "fc_bias": random(rng, 8)}
    got = evaluate(swapped, arrays, train=False).outputs[0]
    dense = arrays["data"] @ arrays["fc_weight"].T + arrays["fc_bias"]  # MXNet's own rrelu ends the process in a graph
    np.testing.assert_allclose(got, np.where(dense > 0, dense, np.float32(0.2295) * dense), rtol=1e-5, atol=1e-6)


def test_random_slopes_whose_second_output_is_used_stay_native():
    native = mx.sym.LeakyReLU(mx.sym.sin(mx.sym.var("data")), act_type="rrelu", name="slopes")
    reasons = {row.name: row.reason for row in swap_symbol(native)[1].kept}
    assert "its output 1 is used" in reasons["slopes"]


def test_random_slopes(rng):
    x, head = (away_from_zero(rng, *SHAPE) for _ in range(2))
    symbol = mx.sym.Custom(mx.sym.var("data"), op_type="ocl_activation", act_type="rrelu", upper_bound=0.5)
    got = evaluate(symbol, {"data": x}, [head])
    slope = got.outputs[0] / x
    np.testing.assert_allclose(got.gradients["data"], slope * head, rtol=1e-6)
    assert (slope[x > 0] == 1).all()
    slopes = slope[x < 0].astype("float64")
    assert 0.125 <= slopes.min() < 0.126 and 0.499 < slopes.max() <= 0.5000001
    sigma = 0.375 / math.sqrt(12 * slopes.size)
    assert abs(slopes.mean() - 0.3125) < SIGMAS * sigma
    found = np.histogram(slopes, 50, (0.125, 0.5))[0]
    chi2 = ((found - slopes.size / 50) ** 2 / (slopes.size / 50)).sum()
    assert abs(chi2 - 49) < SIGMAS * math.sqrt(2 * 49)


def test_mean_slope_when_not_training(rng):
    """MXNet's own operator computes the same then, forward; its training crashes, so the gradient is the formula's."""
    x, head = (away_from_zero(rng, 5, 77) for _ in range(2))
    keys = {"act_type": "rrelu", "lower_bound": 0.1, "upper_bound": 0.5}
    got = evaluate(
        mx.sym.Custom(mx.sym.var("data"), op_type="ocl_activation", **keys), {"data": x}, [head], train=False
    )
    np.testing.assert_allclose(got.outputs[0], mx.nd.LeakyReLU(mx.nd.array(x), **keys)[0].asnumpy(), rtol=1e-6)
    np.testing.assert_allclose(got.gradients["data"], np.where(x > 0, head, np.float32(0.3) * head), rtol=1e-6)


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"op_type": "ocl_dropout", "p": 1.5}, "p 1.5, expected a number from 0 to 1"),
        ({"op_type": "ocl_dropout", "mode": "never"}, "mode 'never', expected one of"),
        ({"op_type": "ocl_dropout", "axes": (5,)}, "axes (5,), expected axes of data"),
        ({"op_type": "ocl_dropout", "seed": -4}, "seed -4, expected a whole number from 0"),
        ({"op_type": "ocl_activation", "act_type": "rrelu", "lower_bound": 0.4}, "lower_bound 0.4, expected at most"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_errors_name_the_attribute(keys, text):
    with pytest.raises(ClgraftError) as error:
        mx.nd.Custom(mx.nd.ones((3, 4)), **keys)
    assert text in str(error.value), error.value
