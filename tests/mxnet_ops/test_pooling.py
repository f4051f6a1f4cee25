"""Pooling compared with MXNet's own."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon

import clgraft.mxnet_ops as ops
from clgraft import core
from tests.adapted_windows import adapted
from tests.mxnet_ops.operator_checks import MODES, assert_close, compare, evaluate, numeric_gradients, random
from tests.problem_sets import problem_lines

NAMES = {"average": "avg", "lp1": "lp", "lp2": "lp", "lp3": "lp"}
PROBLEMS = {
    name: core.parse(text.replace("pool", "pool forward", 1)) for name, text in problem_lines("pooling").items()
}
# what MXNet's attributes can say, and its own operator has
STATED = {
    name: problem
    for name, problem in PROBLEMS.items()
    if problem.pad_begin == problem.pad_end
    and problem.rounding != "ceil_inside"
    and problem.batch * problem.channels
    and problem.dtype != "float16"
}


def attributes(problem: core.PoolProblem) -> dict:
    keys = {
        "kernel": problem.kernel,
        "stride": problem.stride,
        "pad": problem.pad_begin,
        "pool_type": NAMES.get(problem.operator, problem.operator),
        "pooling_convention": {"floor": "valid", "ceil": "full"}[problem.rounding],
        "count_include_pad": problem.count_padding,
    }
    return {**keys, "p_value": int(problem.operator[2:])} if keys["pool_type"] == "lp" else keys


def symbols(**keys):
    data = mx.sym.var("data")
    return mx.sym.Custom(data, op_type="ocl_pooling", name="p", **keys), mx.sym.Pooling(data, name="p", **keys)


def values(rng, shape, pool_type: str = "max", dtype: str = "float32") -> dict[str, np.ndarray]:
    """Return data; for maxima few different values, so that windows hold theirs more than once."""
    x = rng.integers(-3, 4, shape) if pool_type == "max" else random(rng, *shape)
    return {"data": x.astype(dtype)}


@pytest.mark.parametrize("name", STATED)
def test_pooling_is_mxnets_forward_backward_and_under_every_request(name, rng):
    problem = STATED[name]
    keys = attributes(problem)
    arrays = values(rng, problem.arguments()[0].shape, keys["pool_type"], problem.dtype)
    compare(*symbols(**keys), arrays, rng, dtype=problem.dtype)


@pytest.mark.parametrize("train", [True, False], ids=["train", "infer"])
@pytest.mark.parametrize("pool_type", ["max", "avg", "sum", "lp"])
@pytest.mark.parametrize("shape", [(2, 3, 7), (2, 3, 6, 5), (2, 3, 2, 3, 4), (1, 2, 1, 1)], ids=str)
def test_global_pooling_ignores_kernel_stride_and_pad(shape, pool_type, train, rng):
    ndim = len(shape) - 2
    keys = {"global_pool": True, "pool_type": pool_type, "p_value": 2}
    given = {"kernel": (2,) * ndim, "stride": (2,) * ndim, "pad": (1,) * ndim, "pooling_convention": "full"}
    for more in ({}, given):
        compare(*symbols(**keys, **more), values(rng, shape, pool_type, "float64"), rng, dtype="float64", train=train)


@pytest.mark.parametrize("pool_type", ["max", "avg", "lp"])
@pytest.mark.parametrize("global_pool", [False, True])
@pytest.mark.parametrize(
    "layout, shape", [("NWC", (2, 9, 5)), ("NHWC", (2, 9, 8, 5)), ("NDHWC", (1, 4, 5, 6, 3)), ("NCHW", (2, 3, 6, 7))]
)
def test_layouts(layout, shape, global_pool, pool_type, rng):
    if layout == "NDHWC" and not global_pool:  # MXNet has none: test_channels_last compares with its NCDHW
        return
    ndim = len(shape) - 2
    keys = {"kernel": (3,) * ndim, "stride": (2,) * ndim, "pad": (1,) * ndim, "layout": layout, "p_value": 3}
    arrays = values(rng, shape, pool_type, "float64")
    compare(
        *symbols(**keys, global_pool=global_pool, pool_type=pool_type, pooling_convention="full"),
        arrays,
        rng,
        dtype="float64",
        requests=["write", "add"],
    )


@pytest.mark.parametrize("pool_type", ["max", "avg", "sum"])
def test_half_precision(pool_type, rng):
    arrays = values(rng, (2, 3, 9, 7), pool_type, "float16")
    keys = {"kernel": (3, 3), "stride": (2, 2), "pad": (1, 1), "pool_type": pool_type}
    compare(*symbols(**keys), arrays, rng, dtype="float16", requests=["write", "add"])


def test_not_a_number_is_no_maximum(rng):
    arrays = values(rng, (2, 2, 8, 21), "max", "float64")
    arrays["data"][rng.random(arrays["data"].shape) < 0.6] = np.nan
    compare(*symbols(kernel=(2, 3), stride=(2, 2)), arrays, rng, dtype="float64", requests=["write"])


@pytest.mark.parametrize("pool_type", ["max", "avg", "sum", "lp"])
def test_numeric_gradients(pool_type, rng):
    arrays = {"data": 1 + rng.random((2, 3, 6, 7))}
    ours, _ = symbols(kernel=(3, 2), stride=(2, 1), pad=(1, 1), pool_type=pool_type, p_value=3)
    numeric_gradients(ours, arrays, rng)


def test_no_images():
    with mx.util.np_shape(True):
        y = mx.nd.Custom(mx.nd.zeros((0, 3, 4, 6)), op_type="ocl_pooling", kernel=(2, 2), stride=(2, 2))
        assert y.shape == (0, 3, 2, 3)


def blocks():
    nn = gluon.nn
    for ndim, (largest, mean, whole, whole_mean) in enumerate(
        (
            (nn.MaxPool1D, nn.AvgPool1D, nn.GlobalMaxPool1D, nn.GlobalAvgPool1D),
            (nn.MaxPool2D, nn.AvgPool2D, nn.GlobalMaxPool2D, nn.GlobalAvgPool2D),
            (nn.MaxPool3D, nn.AvgPool3D, nn.GlobalMaxPool3D, nn.GlobalAvgPool3D),
        ),
        1,
    ):
        shape = (2, 3, 5, 7, 9)[:2] + (5, 7, 9)[:ndim]
        yield shape, lambda largest=largest: largest(3, 2, 1)
        yield shape, lambda largest=largest: largest(2, 2, ceil_mode=True)
        yield shape, lambda mean=mean: mean(3, 2, 1, count_include_pad=False, ceil_mode=True)
        yield shape, mean
        yield shape, whole
        yield shape, whole_mean


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", range(18))
def test_gluon_blocks_are_swapped(case, mode, rng):
    shape, make = list(blocks())[case]
    x = mx.nd.array(values(rng, shape)["data"])
    found = []
    for swapped in (False, True):
        net = gluon.nn.HybridSequential()
        net.add(make())
        if swapped:
            report = ops.swap_block(net)
            assert [row.became for row in report.replaced] == ["ocl_pooling"] and not report.kept
        if mode != "plain":
            net.hybridize(static_alloc=mode == "static", static_shape=mode == "static")
        x.attach_grad()
        with mx.autograd.record():
            y = net(x)
        y.backward(y + 1)
        found.append((y.asnumpy(), x.grad.asnumpy()))
    for got, expected in zip(found[1], found[0]):
        assert_close(got, expected)


def test_swap_leaves_what_it_cannot_say():
    data = mx.sym.var("data")
    net = mx.sym.Pooling(data, kernel=(3,), pad=(0, 0, 0), pooling_convention="same", pool_type="max", name="same")
    swapped, report = ops.swap_symbol(net)
    (row,) = report.kept
    assert row.name == "same" and "pooling_convention" in row.reason and "'same'" in row.reason
    assert "ocl_pooling" not in swapped.tojson()


def test_swapped_symbol_agrees_and_keeps_its_name(rng):
    data = mx.sym.var("data")
    x = mx.sym.Pooling(data, kernel=(3, 3), stride=(2, 2), pad=(1, 1), pool_type="max", name="first")
    net = mx.sym.Pooling(x, global_pool=True, pool_type="avg", kernel=(1, 1), name="last")
    swapped, report = ops.swap_symbol(net)
    assert len(report.replaced) == 2 and swapped.list_outputs() == net.list_outputs()
    arrays, head = values(rng, (2, 3, 11, 13)), [random(rng, 2, 3, 1, 1)]
    got, expected = evaluate(swapped, arrays, head), evaluate(net, arrays, head)
    assert_close(got.outputs[0], expected.outputs[0])
    assert_close(got.gradients["data"], expected.gradients["data"])


@pytest.mark.parametrize(
    "keys, part",
    [
        ({}, "kernel nothing"),
        ({"kernel": (0, 2)}, "kernel (0, 2)"),
        ({"kernel": (1, 1, 1, 1)}, "1 to 3 numbers"),
        ({"kernel": (2, 2), "stride": (1,)}, "stride (1,)"),
        ({"kernel": (2, 2), "pad": (1, 1, 1)}, "pad (1, 1, 1)"),
        ({"kernel": (2, 2), "pool_type": "stochastic"}, "'stochastic'"),
        ({"kernel": (2, 2), "pool_type": "lp"}, "p_value nothing"),
        ({"kernel": (2, 2), "pool_type": "lp", "p_value": 4}, "p_value 4"),
        ({"kernel": (2, 2), "pooling_convention": "same"}, "'same'"),
        ({"kernel": (2, 2), "layout": "NCW"}, "'NCW'"),
        ({"kernel": (2, 2), "size": 3}, "'size'"),
    ],
)
def test_wrong_attributes_are_named(keys, part):
    with pytest.raises(core.ProblemError) as caught:
        mx.sym.Custom(mx.sym.var("data"), op_type="ocl_pooling", **keys)
    assert str(caught.value).startswith("[ocl_pooling] got ") and part in str(caught.value)


@pytest.mark.parametrize(
    "shape, keys, part",
    [
        ((2, 3, 4), {"kernel": (2, 2)}, "4 axes"),
        ((2, 3, 4, 4), {"kernel": (5, 5)}, "at most the padded input"),
        ((2, 3, 4, 4), {"kernel": (2, 2), "pad": (2, 2)}, "pad_begin"),
        ((2, 3), {"global_pool": True}, "axes"),
    ],
)
def test_wrong_shapes_are_named(shape, keys, part):
    with pytest.raises(core.ProblemError) as caught:
        mx.nd.Custom(mx.nd.zeros(shape), op_type="ocl_pooling", **keys)
    assert "[ocl_pooling]" in str(caught.value) and part in str(caught.value)


def adaptive(sizes) -> mx.sym.Symbol:
    return mx.sym.Custom(mx.sym.var("data"), op_type="ocl_adaptive_max_pooling", output_size=sizes, name="p")


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize(("size", "sizes"), [((7,), (3,)), ((9, 7), (4, 5)), ((6, 4), (3, 2)), ((4, 3, 5), (3, 2, 4))])
def test_adaptive_pooling(size, sizes, dtype, rng):
    arrays = values(rng, (2, 3, *size), dtype=dtype)
    y, index = adapted(arrays["data"], sizes)
    dy = rng.integers(1, 9, y.shape).astype(dtype)
    expected = np.zeros((6, int(np.prod(size))), dtype)
    for plane, at, value in zip(expected, index.reshape(6, -1), dy.reshape(6, -1)):
        np.add.at(plane, at, value)
    got = evaluate(adaptive(sizes), arrays, [dy, np.full_like(dy, np.nan)])  # nothing comes in through the indices
    for one, right in zip((*got.outputs, got.gradients["data"]), (y, index, expected)):
        assert one.dtype == dtype
        np.testing.assert_array_equal(one, right.reshape(one.shape))


def test_numeric_gradients_of_adaptive_pooling(rng):
    numeric_gradients(adaptive((4, 3))[0], {"data": rng.random((2, 3, 6, 7))}, rng)


def test_adaptive_pooling_refuses_what_does_not_fit():
    with pytest.raises(core.ProblemError, match=r"got data of shape \(2, 3, 6\), expected 3 to 5 axes"):
        mx.nd.Custom(mx.nd.zeros((2, 3, 6)), op_type="ocl_adaptive_max_pooling", output_size=(2, 2)).wait_to_read()
