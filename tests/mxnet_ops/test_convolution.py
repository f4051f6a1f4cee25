"""Convolution and depthwise convolution compared with MXNet's own."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest

from clgraft import core
from tests.mxnet_ops.operator_checks import (
    assert_close,
    compare,
    evaluate,
    expect_rounded_half_precision,
    numeric_gradients,
    random,
)
from tests.problem_sets import problem_lines


def stated(problem: core.ConvProblem) -> bool:
    """Whether MXNet's attributes can say it, and its own operator has it: symmetric padding, some image."""
    return problem.pad_begin == problem.pad_end and problem.batch > 0


def attributes(problem: core.ConvProblem) -> dict:
    return {
        "kernel": problem.kernel,
        "stride": problem.stride,
        "dilate": problem.dilate,
        "pad": problem.pad_begin,
        "num_filter": problem.out_channels,
        "num_group": problem.groups,
        "no_bias": not problem.bias,
    }


def symbols(problem: core.ConvProblem, op_type: str = "ocl_conv"):
    keys = attributes(problem)
    data = mx.sym.var("data")
    return mx.sym.Custom(data, op_type=op_type, name="c", **keys), mx.sym.Convolution(data, name="c", **keys)


def inputs(problem: core.ConvProblem, rng, dtype: str) -> dict[str, np.ndarray]:
    names = {"x": "data", "w": "c_weight", "b": "c_bias"}
    return {
        names[argument.name]: random(rng, *argument.shape, dtype=dtype)
        for argument in problem.arguments()
        if argument.name != "y"
    }


CONV = {name: core.parse(text) for name, text in problem_lines("conv").items()}
DEPTHWISE = {name: core.parse(text) for name, text in problem_lines("depthwise").items()}
STATED = {name: problem for name, problem in CONV.items() if stated(problem)}
STATED_DEPTHWISE = {
    name: p for name, p in DEPTHWISE.items() if stated(p) and p.dtype != "float16" and p.in_size[-1] < 90000
}


@pytest.mark.parametrize("name", STATED)
def test_convolution_is_mxnets_forward_backward_and_under_every_request(name, rng):
    problem = STATED[name]
    compare(*symbols(problem), inputs(problem, rng, "float32"), rng)


@pytest.mark.parametrize(
    "name", ["plain-3x3-bias", "dilate-2-stride-2", "groups-2", "1d-stride-dilate-bias", "1x1-stride-2"]
)
def test_convolution_in_float64(name, rng):
    problem = CONV[name]
    if problem.pad_begin == problem.pad_end:
        compare(*symbols(problem), inputs(problem, rng, "float64"), rng, dtype="float64", requests=["write"])
    ours, _ = symbols(problem)
    numeric_gradients(ours, inputs(problem, rng, "float64"), rng)


@pytest.mark.parametrize("name", STATED_DEPTHWISE)
def test_depthwise_convolution_is_mxnets(name, rng):
    problem = STATED_DEPTHWISE[name]
    arrays = inputs(problem, rng, problem.dtype)
    compare(*symbols(problem, "ocl_depthwise_conv"), arrays, rng, dtype=problem.dtype, requests=["write", "add"])


@pytest.mark.parametrize("name", ["plain-3x3", "stride-2", "dilate-2", "multiplier-2", "5x5"])
def test_depthwise_convolution_is_one_native_convolution_per_channel(name, rng):
    problem = DEPTHWISE[name]
    channels, multiplier = problem.in_channels, problem.out_channels // problem.in_channels
    keys = {**attributes(problem), "num_group": 1, "num_filter": multiplier, "no_bias": True}
    data, weight = mx.sym.var("data"), mx.sym.var("c_weight")
    parts = []
    for c in range(channels):
        x = mx.sym.slice_axis(data, axis=1, begin=c, end=c + 1)
        w = mx.sym.slice_axis(weight, axis=0, begin=c * multiplier, end=(c + 1) * multiplier)
        parts.append(mx.sym.Convolution(x, w, **keys))
    native = mx.sym.Concat(*parts, dim=1)
    own = {**attributes(problem), "no_bias": True}
    del own["num_group"]  # it is the number of channels
    ours = mx.sym.Custom(data, weight, op_type="ocl_depthwise_conv", name="c", **own)
    arrays = inputs(problem, rng, "float32")
    arrays.pop("c_bias", None)
    compare(ours, native, arrays, rng, requests=["write"])


@pytest.mark.parametrize("name", ["plain-3x3-bias", "groups-2", "3x3-stride-2"])
def test_half_precision_is_the_float32_result_rounded(name, rng):
    problem = CONV[name]
    expect_rounded_half_precision(*symbols(problem), inputs(problem, rng, "float16"), rng)


def test_shapes_and_types_follow_from_data_alone():
    data = mx.sym.var("data")
    symbol = mx.sym.Custom(data, op_type="ocl_conv", kernel=(3, 5), num_filter=6, num_group=2, name="c")
    arguments, outputs, _ = symbol.infer_shape(data=(2, 4, 9, 11))
    assert arguments == [(2, 4, 9, 11), (6, 2, 3, 5), (6,)]
    assert outputs == [(2, 6, 7, 7)]
    types, results, _ = symbol.infer_type(data="float64")
    assert types == [np.float64] * 3 and results == [np.float64]
    assert symbol.list_outputs() == ["c_output"]
    assert symbol.list_arguments() == ["data", "c_weight", "c_bias"]


@pytest.mark.parametrize("op_type", ["ocl_conv", "ocl_depthwise_conv"])
def test_no_images(op_type):
    with mx.util.np_shape(True):
        x, w, b = mx.nd.zeros((0, 3, 5, 5)), mx.nd.ones((3, 3 if op_type == "ocl_conv" else 1, 3, 3)), mx.nd.ones((3,))
        for array in (x, w, b):
            array.attach_grad()
            array.grad[:] = np.nan
        with mx.autograd.record():
            y = mx.nd.Custom(x, w, b, op_type=op_type, kernel=(3, 3), num_filter=3)
        y.backward()
        assert y.shape == (0, 3, 3, 3)
        assert x.grad.shape == x.shape
        assert (w.grad.asnumpy() == 0).all() and (b.grad.asnumpy() == 0).all()


def test_two_runs_give_the_same_bits(rng):
    problem = CONV["many-channels"]
    ours, _ = symbols(problem)
    arrays = inputs(problem, rng, "float32")
    head = random(rng, problem.batch, problem.out_channels, *problem.out_size)
    one, other = evaluate(ours, arrays, [head]), evaluate(ours, arrays, [head])
    assert (one.outputs[0] == other.outputs[0]).all()
    assert all((one.gradients[name] == other.gradients[name]).all() for name in arrays)


def test_output_written_into_an_array_that_exists_or_is_the_input(rng):
    x = mx.nd.array(random(rng, 2, 3, 6, 6))
    w = mx.nd.array(random(rng, 3, 3, 3, 3))
    keys = {"kernel": (3, 3), "pad": (1, 1), "num_filter": 3, "no_bias": True}
    expected = mx.nd.Convolution(x, w, **keys).asnumpy()
    out = mx.nd.full((2, 3, 6, 6), np.nan)
    mx.nd.Custom(x, w, op_type="ocl_conv", out=out, **keys)
    assert_close(out.asnumpy(), expected)
    wide = mx.nd.array(random(rng, 32, 3, 3, 3))
    blocked = mx.nd.Convolution(x, wide, kernel=(3, 3), pad=(1, 1), num_filter=32, no_bias=True)
    many = {**keys, "num_filter": 32}
    right = mx.nd.Convolution(x, wide, **many).asnumpy()
    mx.nd.Custom(x, wide, op_type="ocl_conv", out=blocked, **many)
    assert_close(blocked.asnumpy(), right)
    mx.nd.Custom(x, w, op_type="ocl_conv", out=x, **keys)
    assert_close(x.asnumpy(), expected)


def test_input_overwritten_by_a_call_without_guards(rng):
    x, w = mx.nd.array(random(rng, 2, 3, 6, 6)), mx.nd.array(random(rng, 3, 3, 3, 3))
    keys = {"kernel": (3, 3), "pad": (1, 1), "num_filter": 3, "no_bias": True}
    expected = mx.nd.Convolution(x, w, **keys).asnumpy()
    mx.nd.Custom.__wrapped__(x, w, op_type="ocl_conv", out=x, **keys)
    assert_close(x.asnumpy(), expected)


def test_inputs_by_name(rng):
    x, w, b = (mx.nd.array(random(rng, *shape)) for shape in ((1, 2, 4, 4), (3, 2, 1, 1), (3,)))
    got = mx.nd.Custom(bias=b, data=x, weight=w, op_type="ocl_conv", kernel=(1, 1), num_filter=3)
    assert_close(got.asnumpy(), mx.nd.Convolution(x, w, b, kernel=(1, 1), num_filter=3).asnumpy())
    symbol = mx.sym.Custom(
        weight=mx.sym.var("w"), data=mx.sym.var("x"), op_type="ocl_conv", kernel=(1, 1), num_filter=3, name="c"
    )
    assert symbol.list_arguments() == ["x", "w", "c_bias"]
