"""Products of attributes: every combination that MXNet's operators take of kernels, strides, pads, types and modes."""

from __future__ import annotations

import itertools

import mxnet as mx
import numpy as np
import pytest

from clgraft import core
from tests.mxnet_ops.operator_checks import assert_close, compare, evaluate, random


def product(**choices):
    """Yield every combination of some attributes."""
    for values in itertools.product(*choices.values()):
        yield dict(zip(choices, values))


def pair(op_type: str, native: str, **keys):
    data = mx.sym.var("data")
    return mx.sym.Custom(data, op_type=op_type, name="o", **keys), getattr(mx.sym, native)(data, name="o", **keys)


def filled(symbol, shape, rng, dtype: str = "float32") -> dict[str, np.ndarray]:
    shapes, _, _ = symbol.infer_shape(data=shape)
    return {name: random(rng, *size, dtype=dtype) for name, size in zip(symbol.list_arguments(), shapes)}


def fits(size: int, kernel: int, pad: int, dilate: int) -> bool:
    return dilate * (kernel - 1) < size + 2 * pad


@pytest.mark.parametrize("channels", [1, 4, 19, 64])
@pytest.mark.parametrize("ndim", [1, 2])
def test_depthwise(ndim, channels, rng):
    for case in product(kernel=(3, 5), stride=(1, 2), pad=(0, 1), size=(7, 32), dilate=(1, 2)):
        size = case.pop("size")
        if not fits(size, case["kernel"], case["pad"], case["dilate"]):
            continue
        keys = {name: (value,) * ndim for name, value in case.items()}
        keys.update(num_filter=channels, num_group=channels, no_bias=True)
        ours, native = pair("ocl_depthwise_conv", "Convolution", **keys)
        arrays = filled(native, (2, channels, *(size,) * ndim), rng)
        compare(ours, native, arrays, rng, requests=["write"])


@pytest.mark.parametrize("ndim", [1, 2, 3])
def test_convolution(ndim, rng):
    size = (9, 8, 7)[:ndim]
    for case in product(kernel=(1, 2, 3), stride=(1, 2), pad=(0, 1), dilate=(1, 2), num_group=(1, 2), no_bias=(0, 1)):
        if case["kernel"] == 1 and case["dilate"] == 2:
            continue
        keys = {n: (v,) * ndim if n in ("kernel", "stride", "pad", "dilate") else v for n, v in case.items()}
        ours, native = pair("ocl_conv", "Convolution", num_filter=6, **keys)
        compare(ours, native, filled(native, (3, 4, *size), rng), rng, requests=["write"])


@pytest.mark.parametrize("requests", list(itertools.product(("write", "null", "add"), repeat=3)), ids="-".join)
def test_convolution_gradients_are_independent_of_each_other(requests, rng):
    keys = {"kernel": (3, 3), "pad": (1, 1), "stride": (2, 1), "num_filter": 5}
    ours, native = pair("ocl_conv", "Convolution", **keys)
    named = dict(zip(native.list_arguments(), requests))
    compare(ours, native, filled(native, (2, 3, 7, 6), rng), rng, requests=[named])


@pytest.mark.parametrize("dilate", [1, 2, 3])
@pytest.mark.parametrize("kernel", [2, 3, 4])
def test_an_impulse_answers_with_the_kernel_spread_out(kernel, dilate):
    x = np.zeros((1, 1, 31, 33), "float32")
    x[0, 0, 15, 16] = 1
    weight = np.arange(1, kernel * kernel + 1, dtype="float32").reshape(1, 1, kernel, kernel)
    keys = {"kernel": (kernel,) * 2, "dilate": (dilate,) * 2, "pad": (9, 9), "num_filter": 1, "no_bias": True}
    for op_type in ("ocl_conv", "ocl_depthwise_conv"):
        y = mx.nd.Custom(mx.nd.array(x), mx.nd.array(weight), op_type=op_type, **keys).asnumpy()[0, 0]
        rows = 15 + 9 - dilate * np.arange(kernel)
        assert (y[np.ix_(rows, rows + 1)] == weight[0, 0]).all() and y.sum() == weight.sum()


@pytest.mark.parametrize("op_type", ["ocl_conv", "ocl_depthwise_conv"])
@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_types_with_dilation_and_stride(op_type, dtype, rng):
    for stride, dilate, kernel in ((1, 2, 3), (2, 2, 3), (1, 3, 5), (2, 1, 5)):
        case = {"stride": stride, "dilate": dilate, "kernel": kernel}
        keys = {name: (value,) * 2 for name, value in case.items()}
        groups = 6 if op_type == "ocl_depthwise_conv" else 2
        ours, native = pair(op_type, "Convolution", num_filter=6, num_group=groups, pad=(2, 3), **keys)
        arrays = filled(native, (2, 6, 13, 17), rng, dtype)
        if dtype == "float64":
            compare(ours, native, arrays, rng, dtype=dtype, requests=["write"])
            continue
        # MXNet has no convolution in half precision on CPUs: the same numbers in float32 decide
        wide = {name: value.astype("float32") for name, value in arrays.items()}
        head = random(rng, *evaluate(native, wide).outputs[0].shape, dtype="float16")
        got, expected = evaluate(ours, arrays, [head]), evaluate(native, wide, [head.astype("float32")])
        assert got.outputs[0].dtype == np.float16
        assert_close(got.outputs[0], expected.outputs[0], "float16", str(case))
        for name in arrays:
            assert_close(got.gradients[name], expected.gradients[name], "float16", f"{name} {case}")


@pytest.mark.parametrize("ndim", [1, 2, 3])
@pytest.mark.parametrize("pool_type", ["max", "avg", "sum", "lp"])
def test_pooling(pool_type, ndim, rng):
    size = (11, 9, 7)[:ndim]
    types = {
        "max": ({},),
        "sum": ({},),
        "avg": product(count_include_pad=(True, False)),
        "lp": product(p_value=(1, 2, 3)),
    }
    for more in list(types[pool_type]):
        for case in product(kernel=(3, 4), stride=(1, 2), pad=(0, 2), pooling_convention=("valid", "full")):
            keys = {n: v if n == "pooling_convention" else (v,) * ndim for n, v in case.items()}
            ours, native = pair("ocl_pooling", "Pooling", pool_type=pool_type, **keys, **more)
            arrays = {"data": random(rng, 2, 3, *size, dtype="float64")}
            if more.get("p_value", 1) > 1:
                arrays = {"data": np.abs(arrays["data"]) + 0.1}  # a root of a sum that is nearly zero has no digits
            compare(ours, native, arrays, rng, dtype="float64", requests=["write"])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("ndim", [1, 2, 3])
def test_an_average_of_no_elements_is_zero(ndim, dtype):
    # the last window of each axis begins after the input; MXNet's own is 0, NaN (3-D, float64) or an error (float32)
    keys = {"kernel": (3,) * ndim, "stride": (2,) * ndim, "pad": (2,) * ndim, "count_include_pad": False}
    x = mx.nd.ones((1, 1, *(10,) * ndim), dtype=dtype)
    x.attach_grad()
    with mx.autograd.record():
        y = mx.nd.Custom(x, op_type="ocl_pooling", pool_type="avg", pooling_convention="full", **keys)
    y.backward()
    expected = np.ones((7,) * ndim)
    for axis in range(ndim):
        expected[(slice(None),) * axis + (6,)] = 0
    assert_close(y.asnumpy()[0, 0], expected.astype(dtype), dtype)
    assert abs(x.grad.asnumpy().sum() - 6**ndim) < 1e-3


@pytest.mark.parametrize("train", [True, False], ids=["train", "infer"])
@pytest.mark.parametrize("shape", [(24, 2), (2, 3, 4), (2, 8, 2, 2), (4, 3, 2, 3, 4), (1, 5, 1, 1)], ids=str)
def test_batch_norm(shape, train, rng):
    for case in product(fix_gamma=(0, 1), use_global_stats=(0, 1), axis=(1, -1), output_mean_var=(0, 1)):
        ours, native = pair("ocl_batchnorm", "BatchNorm", momentum=0.7, eps=1e-5, **case)
        arrays = filled(native, shape, rng, "float64")
        if case["fix_gamma"]:
            arrays["o_gamma"] = np.ones_like(arrays["o_gamma"])  # MXNet writes it over
        channels = shape[case["axis"]]
        states = {"o_moving_mean": random(rng, channels, dtype="float64"), "o_moving_var": 0.5 + rng.random(channels)}
        outputs = evaluate(native, arrays, auxiliary=states).outputs
        # the statistics take no gradient
        heads = [random(rng, *outputs[0].shape, dtype="float64"), *(np.zeros(o.shape) for o in outputs[1:])]
        got, expected = (evaluate(s, arrays, heads, train=train, auxiliary=states) for s in (ours, native))
        for one, other in zip(got.outputs, expected.outputs):
            assert_close(one, other, "float64", str(case))
        for name in arrays:
            assert_close(got.gradients[name], expected.gradients[name], "float64", f"{name} {case}")
        for name in states:
            assert_close(got.auxiliary[name], expected.auxiliary[name], "float64", f"{name} {case}")


def test_batch_norm_of_a_channel_without_variance(rng):
    ours, native = pair("ocl_batchnorm", "BatchNorm", fix_gamma=False, eps=1e-3)
    arrays = filled(native, (3, 2, 4, 4), rng, "float64")
    arrays["data"][:, 1] = 2.5
    states = {"o_moving_mean": np.zeros(2), "o_moving_var": np.ones(2)}
    compare(ours, native, arrays, rng, dtype="float64", auxiliary=states, requests=["write"])


@pytest.mark.parametrize("operation", ["add", "subtract", "multiply", "divide", "maximum", "power", "hypot"])
def test_broadcasting_of_any_rank(operation, rng):
    names = {"subtract": "sub", "multiply": "mul", "divide": "div"}
    a, b = mx.sym.var("a"), mx.sym.var("b")
    ours = mx.sym.Custom(a, b, op_type="ocl_eltwise", operation=operation, broadcast=True, name="o")
    native = getattr(mx.sym, f"broadcast_{names.get(operation, operation)}")(a, b, name="o")
    for ndim in range(1, 7):
        sizes = rng.integers(1, 4, ndim)
        shapes = [tuple(np.where(rng.random(ndim) < 0.4, 1, sizes)) for _ in "ab"]
        arrays = {name: 0.5 + rng.random(shape) for name, shape in zip("ab", shapes)}
        compare(ours, native, arrays, rng, dtype="float64", requests=["write"])


@pytest.mark.parametrize(
    "op_type, keys, part",
    [
        ("ocl_conv", {"kernel": (3, 3), "num_filter": 4, "layout": "HWNC"}, "layout 'HWNC'"),
        ("ocl_conv", {"kernel": (3, 3)}, "num_filter nothing"),
        ("ocl_conv", {"num_filter": 4}, "kernel nothing"),
        ("ocl_conv", {"kernel": (1, 1, 1, 1), "num_filter": 4}, "kernel (1, 1, 1, 1)"),
        ("ocl_conv", {"kernel": (3, 3), "num_filter": 4, "num_group": 3}, "num_filter 4"),
        ("ocl_conv", {"kernel": (3, 3), "num_filter": 4, "stride": (0, 1)}, "stride (0, 1)"),
        ("ocl_conv", {"kernel": (3, 3), "num_filter": 4, "dilate": (1,)}, "dilate (1,)"),
        ("ocl_conv", {"kernel": (3, 3), "num_filter": 4, "pad": (-1, 0)}, "pad (-1, 0)"),
        ("ocl_conv", {"kernel": (3, 3), "num_filter": 4, "no_bias": "maybe"}, "no_bias 'maybe'"),
        ("ocl_depthwise_conv", {"kernel": (3, 3), "num_filter": 4, "num_group": -1}, "num_group -1"),
        ("ocl_batchnorm", {"eps": -1}, "eps -1.0"),
        ("ocl_batchnorm", {"axis": "one"}, "axis 'one'"),
        ("ocl_batchnorm", {"epsilon": 1e-3}, "attribute 'epsilon'"),
    ],
)
def test_what_is_refused_is_named(op_type, keys, part):
    with pytest.raises(core.ProblemError) as caught:
        mx.sym.Custom(mx.sym.var("data"), op_type=op_type, **keys)
    assert f"[{op_type}] got {part}" in str(caught.value)
