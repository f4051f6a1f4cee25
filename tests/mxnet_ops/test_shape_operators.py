"""Joining, cutting, padding, reordering and folding compared with MXNet's own operators, and their swap."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon

from clgraft.mxnet_ops import swap_block, swap_symbol
from tests.mxnet_ops.operator_checks import MODES, compare, evaluate, random

X = (3, 4, 6, 5)


def var(*names: str):
    return tuple(mx.sym.var(name) for name in names)


def body(symbol):
    """An operator of a net: in front of it something of real numbers, so that a swap does not meet integers."""
    return mx.sym.sin(symbol)


CASES = {
    "concat": lambda x: mx.sym.Concat(x, mx.sym.sin(x), mx.sym.cos(x), dim=1),
    "concat-first": lambda x: mx.sym.concat(x, mx.sym.slice_axis(x, axis=0, begin=0, end=1), dim=0),
    "concat-last": lambda x: mx.sym.concat(x, mx.sym.slice_axis(x, axis=3, begin=1, end=3), dim=-1),
    "concat-one": lambda x: mx.sym.concat(x, dim=1),
    "stack": lambda x: mx.sym.stack(x, mx.sym.sin(x), axis=2),
    "split": lambda x: mx.sym.Group(list(mx.sym.split(x, num_outputs=2, axis=1))),
    "split-last": lambda x: mx.sym.Group(list(mx.sym.SliceChannel(x, num_outputs=5, axis=-1, squeeze_axis=True))),
    "split-partly": lambda x: mx.sym.split(x, num_outputs=3, axis=0)[1],
    "slice-axis": lambda x: mx.sym.slice_axis(x, axis=1, begin=1, end=3),
    "slice-axis-end": lambda x: mx.sym.slice_axis(x, axis=-2, begin=-4, end=None),
    "slice": lambda x: mx.sym.slice(x, begin=(0, None, 2), end=(2, 3, None)),
    "slice-negative": lambda x: mx.sym.slice(x, begin=(None, -3, 1), end=(None, -1, -1), step=(1, 1, 1)),
    "slice-beyond": lambda x: mx.sym.slice(x, begin=(0, 1), end=(99, 99)),
    "crop": lambda x: mx.sym.Crop(x, num_args=1, offset=(1, 2), h_w=(4, 3)),
    "crop-center": lambda x: mx.sym.Crop(x, num_args=1, h_w=(3, 2), center_crop=True),
    "pad": lambda x: mx.sym.pad(x, mode="constant", pad_width=(0, 0, 0, 0, 1, 2, 3, 0), constant_value=1.5),
    "pad-edge": lambda x: mx.sym.pad(x, mode="edge", pad_width=(0, 0, 0, 0, 1, 2, 3, 0)),
    "pad-reflect": lambda x: mx.sym.pad(x, mode="reflect", pad_width=(0, 0, 0, 0, 2, 1, 3, 4)),
    "slice-steps": lambda x: mx.sym.slice(x, begin=(None, 3, 1), end=(3, None, 6), step=(2, -2, 3)),
    "pad-zero": lambda x: mx.sym.Pad(x, mode="constant", pad_width=(0, 0, 0, 0, 1, 1, 1, 1)),
    "transpose": lambda x: mx.sym.transpose(x, axes=(0, 2, 3, 1)),
    "transpose-all": lambda x: mx.sym.transpose(x),
    "swapaxes": lambda x: mx.sym.SwapAxis(x, dim1=1, dim2=3),
    "upsampling": lambda x: mx.sym.UpSampling(x, scale=3, sample_type="nearest"),
    "tile": lambda x: mx.sym.tile(x, reps=(2, 1, 3)),
    "tile-new-axis": lambda x: mx.sym.tile(x, reps=(2, 1, 1, 1, 2)),
    "repeat": lambda x: mx.sym.repeat(x, repeats=2, axis=-1),
    "sum": lambda x: mx.sym.sum(x, axis=(1, 3)),
    "sum-all": lambda x: mx.sym.sum(x),
    "sum-exclude": lambda x: mx.sym.sum(x, axis=1, exclude=True),
    "mean": lambda x: mx.sym.mean(x, axis=(2, 3), keepdims=True),
    "mean-negative": lambda x: mx.sym.mean(x, axis=-1),
    "max": lambda x: mx.sym.max(x, axis=1),
    "min": lambda x: mx.sym.min(x, axis=(0, 2), keepdims=True),
    "plus": lambda x: x + 1.5,
    "minus": lambda x: x - 1.5,
    "minus-from": lambda x: 1.5 - x,
    "times": lambda x: x * -2.5,
    "over": lambda x: x / 3,
    "over-x": lambda x: 2 / (x + 3),
    "maximum": lambda x: mx.sym.maximum(x, 0.25),
    "minimum": lambda x: mx.sym.minimum(x, 0.25),
    "square": lambda x: x**2,
    "root": lambda x: (x + 3) ** 0.5,
    "cube": lambda x: x**3,
    "power-of": lambda x: mx.sym._internal._rpower_scalar(x, scalar=2.5),
    "smooth-l1": lambda x: mx.sym.smooth_l1(x, scalar=2),
    "selu": lambda x: mx.sym.LeakyReLU(x, act_type="selu"),
}


@pytest.mark.parametrize("name", CASES)
def test_swapped_is_mxnets(name, rng):
    native = CASES[name](body(mx.sym.var("x", dtype="float32")))
    swapped, report = swap_symbol(native)
    assert not report.kept, report
    compare(swapped, native, {"x": random(rng, *X)}, rng, requests=["write", "add"])


@pytest.mark.parametrize("name", ["concat-last", "split", "slice", "pad", "transpose", "tile", "mean", "max", "times"])
@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_other_dtypes(name, dtype, rng):
    native = CASES[name](mx.sym.relu(mx.sym.var("x", dtype=dtype)))
    swapped, _ = swap_symbol(native)
    compare(swapped, native, {"x": random(rng, *X, dtype=dtype)}, rng, dtype=dtype, requests=["write"])


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 17, 1, 1), (1, 31, 7, 7)], ids=str)
def test_odd_shapes_of_concat(shape, rng):
    x, y, z = var("x", "y", "z")
    native = mx.sym.Concat(x, y, z, dim=1)
    ours = mx.sym.Custom(x, y, z, op_type="ocl_concat", num_args=3)
    other = (shape[0], 3, *shape[2:])
    arrays = {"x": random(rng, *shape), "y": random(rng, *other), "z": random(rng, *shape)}
    compare(ours, native, arrays, rng)


def test_crop_like_another(rng):
    x, like = var("x", "like")
    native = mx.sym.Crop(x, like, num_args=2, offset=(1, 1))
    ours = mx.sym.Custom(x, like, op_type="ocl_crop", num_args=2, offset=(1, 1))
    compare(ours, native, {"x": random(rng, *X), "like": random(rng, 1, 9, 4, 3)}, rng)


def test_one_array_twice(rng):
    x = mx.sym.var("x")
    ours = mx.sym.Custom(x, x, op_type="ocl_concat", num_args=2)
    compare(ours, mx.sym.Concat(x, x, dim=1), {"x": random(rng, *X)}, rng)


def test_no_images():
    with mx.util.np_shape(True):
        x = mx.nd.ones((0, 3, 4))
        for keys in (
            {"op_type": "ocl_split", "num_outputs": 3},
            {"op_type": "ocl_slice", "axis": 1, "begin": 1, "end": 2},
        ):
            outputs = mx.nd.Custom(x, **keys)
            assert (outputs[0] if isinstance(outputs, list) else outputs).shape == (0, 1, 4)
        assert mx.nd.Custom(x, x, op_type="ocl_concat", num_args=2).shape == (0, 6, 4)
        assert mx.nd.Custom(x, op_type="ocl_dropout").shape == (0, 3, 4)


def test_extremes_of_equal_values_share_the_gradient():
    x = np.array([[1, 3, 3], [2, -1, 2]], "float32")
    swapped, _ = swap_symbol(mx.sym.max(body(mx.sym.var("x", dtype="float32")), axis=1))
    native = mx.sym.max(body(mx.sym.var("x", dtype="float32")), axis=1)
    heads = [np.array([1.0, 2.0], "float32")]
    got, expected = (evaluate(s, {"x": x}, heads).gradients["x"] for s in (swapped, native))
    np.testing.assert_allclose(got, expected, rtol=1e-6)


KEPT = {
    "upsampling-bilinear": lambda x: mx.sym.UpSampling(
        x, mx.sym.var("w"), scale=2, sample_type="bilinear", num_filter=4, num_args=2
    ),
    "repeat-flat": lambda x: mx.sym.repeat(x, repeats=2),
    "divided-by-nothing": lambda x: x / 0,
    "power-of-nothing": lambda x: mx.sym._internal._rpower_scalar(x, scalar=0.0),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_stays_native_says_why(name):
    _, report = swap_symbol(KEPT[name](body(mx.sym.var("x", dtype="float32"))))
    assert len(report.kept) == 1 and report.kept[0].reason, report


def test_what_may_be_of_whole_numbers_stays_native():
    x = mx.sym.var("x")
    _, report = swap_symbol(mx.sym.slice_axis(mx.sym.reshape(x, shape=(-1, 2)), axis=0, begin=0, end=1) + 1)
    assert not report.replaced
    assert any("whole numbers: the dtype of 'x'" in row.reason for row in report.kept)
    _, report = swap_symbol(mx.sym.slice_axis(mx.sym.var("x", dtype="float32"), axis=0, begin=0, end=1))
    assert report.replaced


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"op_type": "ocl_concat", "num_args": 1, "dim": 4}, "dim 4, expected an axis of 4"),
        ({"op_type": "ocl_split", "num_outputs": 5}, "num_outputs 5, expected a divisor of 4"),
        ({"op_type": "ocl_split", "num_outputs": 2, "squeeze_axis": True}, "squeeze_axis True"),
        ({"op_type": "ocl_slice", "begin": (0, 1), "end": (1,)}, "end (1,), expected 2 numbers"),
        ({"op_type": "ocl_slice", "axis": 7, "begin": 0, "end": 1}, "axis 7"),
        ({"op_type": "ocl_slice", "axis": 1, "begin": 3, "end": 1}, "begin and end"),
        ({"op_type": "ocl_slice", "begin": (0,), "end": (3,), "step": (0,)}, "step (0,), expected 1 numbers other"),
        ({"op_type": "ocl_crop", "num_args": 1, "h_w": (9, 9)}, "does not fit"),
        ({"op_type": "ocl_pad", "mode": "reflect", "pad_width": (0,) * 6 + (5, 0)}, "does not fit"),
        ({"op_type": "ocl_pad", "mode": "wrap", "pad_width": (0,) * 8}, "mode 'wrap', expected one of"),
        ({"op_type": "ocl_pad", "mode": "constant", "pad_width": (0, 1)}, "pad_width (0, 1), expected 8 numbers"),
        ({"op_type": "ocl_transpose", "axes": (0, 1, 1, 2)}, "axes (0, 1, 1, 2)"),
        ({"op_type": "ocl_repeat", "times": (2, 2), "axis": 1}, "axis (1,)"),
        ({"op_type": "ocl_reduce", "operation": "sum", "axis": (1, 1)}, "axis (1, 1), expected different"),
        ({"op_type": "ocl_reduce", "operation": "norm"}, "operation 'norm', expected one of"),
    ],
    ids=lambda value: value["op_type"] if isinstance(value, dict) else "",
)
def test_errors_name_the_attribute(keys, text):
    from clgraft.core import ClgraftError

    with pytest.raises(ClgraftError) as error:
        mx.nd.Custom(mx.nd.ones(X), **keys)
    assert text in str(error.value) and str(error.value).startswith(f"[{keys['op_type']}]"), error.value


class Everything(gluon.HybridBlock):
    """Calls as user code makes them, by position and by name."""

    def hybrid_forward(self, F, x):
        x = F.relu(x)
        parts = F.split(x, 2, axis=1)
        y = F.concat(parts[1], F.slice_axis(x, 1, 0, 2), dim=1)
        y = F.transpose(y, (0, 2, 3, 1))
        y = F.swapaxes(y, 1, 3)
        y = F.UpSampling(y, scale=2, sample_type="nearest")
        y = F.pad(y, mode="reflect", pad_width=(0, 0, 0, 0, 1, 1, 2, 2))
        y = F.broadcast_add(y, F.mean(y, axis=(2, 3), keepdims=True))
        y = F.stack(y, F.clip(y, 0, 1), axis=1)
        y = F.sum(y, 1)
        return F.Dropout(F.tile(y, reps=(1, 1, 2, 1)), 0.0)


@pytest.mark.parametrize("mode", MODES)
def test_calls_in_gluon(mode, rng):
    native, swapped = Everything(), Everything()
    report = swap_block(swapped)
    assert len(report.replaced) >= 10, report
    if mode != "plain":
        swapped.hybridize(static_alloc=mode == "static", static_shape=mode == "static")
    values = random(rng, *X)
    results = []
    for net in (native, swapped):
        x = mx.nd.array(values)
        x.attach_grad()
        with autograd.record():
            y = net(x)
        y.backward(mx.nd.array(np.random.default_rng(4).standard_normal(y.shape)))
        results.append((y.asnumpy(), x.grad.asnumpy()))
    for got, expected in zip(results[1], results[0]):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
