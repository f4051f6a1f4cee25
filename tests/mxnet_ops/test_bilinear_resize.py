"""Bilinear resizing compared with MXNet's own."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest

import clgraft.mxnet_ops as ops
from clgraft import core
from tests.mxnet_ops.operator_checks import compare, evaluate, numeric_gradients, random

SIZES = [
    {"height": 9, "width": 11},
    {"height": 3, "width": 2},
    {"height": 1, "width": 1},
    {"height": 5, "width": 7},
    {"scale_height": 2.0, "scale_width": 1.6},
    {"height": 3, "width": 4, "scale_width": 0.5},
    {"mode": "odd_scale", "scale_height": 2.0, "scale_width": 0.5},
    {"mode": "to_even_up"},
    {"mode": "to_even_down"},
    {"mode": "to_odd_up"},
    {"mode": "to_odd_down"},
]


def pair(*inputs: str, **keys):
    native = mx.sym.contrib.BilinearResize2D(*map(mx.sym.var, inputs or ("data",)), name="op", **keys)
    swapped, report = ops.swap_symbol(native)
    assert [row.became for row in report.replaced] == ["ocl_bilinear_resize"] and not report.kept
    return swapped, native


@pytest.mark.parametrize("align", [True, False], ids=["align", "areas"])
@pytest.mark.parametrize("keys", SIZES, ids=str)
def test_sizes_are_mxnets(keys, align, rng):
    compare(*pair(**keys, align_corners=align), {"data": random(rng, 2, 3, 5, 7)}, rng)


@pytest.mark.parametrize("shape", [(2, 3, 4, 6), (1, 1, 1, 1), (1, 2, 9, 8)], ids=str)
def test_sizes_from_other_shapes(shape, rng):
    for keys in ({"height": 6, "width": 5}, {"mode": "odd_scale", "scale_height": 1.5, "scale_width": 3}):
        compare(*pair(**keys), {"data": random(rng, *shape)}, rng, train=False)


@pytest.mark.parametrize("align", [True, False])
def test_like_another_input(align, rng):
    # a smaller one makes MXNet's own clear memory beyond its gradient
    arrays = {"data": random(rng, 2, 3, 5, 7), "like": random(rng, 2, 3, 8, 4)}
    compare(*pair("data", "like", mode="like", align_corners=align), arrays, rng)


def test_numeric_gradients(rng):
    data = rng.standard_normal((1, 2, 4, 5))
    numeric_gradients(pair(height=7, width=3, align_corners=False)[0], {"data": data}, rng)


def test_half_precision(rng):
    x = random(rng, 2, 3, 5, 7, dtype="float16")
    ours, native = pair(height=10, width=14)
    wide = evaluate(native, {"data": x.astype("float32")}).outputs[0]
    assert np.abs(evaluate(ours, {"data": x}).outputs[0] - wide).max() < 2e-3


@pytest.mark.parametrize(
    "keys, part",
    [
        ({"height": 0}, "height 0"),
        ({"mode": "odd_scale"}, "scale_height None"),
        ({"scale_height": 2.0}, "scale_width None"),
        ({"scale_height": -1.0, "scale_width": 2.0}, "scale_height -1.0"),
        ({"mode": "larger"}, "'larger'"),
        ({"heigth": 3}, "'heigth'"),
    ],
)
def test_wrong_attributes_are_named(keys, part):
    with pytest.raises(core.ProblemError) as caught:
        mx.sym.Custom(mx.sym.var("data"), op_type="ocl_bilinear_resize", **keys)
    assert str(caught.value).startswith("[ocl_bilinear_resize] got ") and part in str(caught.value)
    with pytest.raises(core.ProblemError, match="4 axes"):
        mx.nd.Custom(mx.nd.zeros((3,)), op_type="ocl_bilinear_resize")
