"""Local response normalisation compared with MXNet's own."""

from __future__ import annotations

import mxnet as mx
import pytest

import clgraft.mxnet_ops as ops
from clgraft import core
from tests.mxnet_ops.operator_checks import compare, evaluate, numeric_gradients, random


def pair(**keys):
    native = mx.sym.LRN(mx.sym.var("data"), name="op", **keys)
    swapped, report = ops.swap_symbol(native)
    assert [row.became for row in report.replaced] == ["ocl_lrn"] and not report.kept
    return swapped, native


@pytest.mark.parametrize("train", [True, False], ids=["train", "infer"])
@pytest.mark.parametrize(
    "shape, keys",
    [
        ((2, 9, 5, 7), {"nsize": 5}),
        ((1, 3, 8, 8), {"nsize": 5, "alpha": 1.0, "knorm": 1}),
        ((2, 96, 6, 6), {"nsize": 5, "alpha": 1e-4, "beta": 0.75, "knorm": 2}),
        ((2, 4, 3, 3), {"nsize": 3, "alpha": 0.5, "beta": 0.6}),
        ((2, 4, 1, 1), {"nsize": 1, "alpha": 0.5}),
        ((2, 9, 5, 7), {"nsize": 4, "alpha": 1.5}),
        ((1, 6, 3, 3), {"nsize": 2, "alpha": 0.5, "beta": 0.6, "knorm": 1.2}),
    ],
    ids=str,
)
def test_lrn_is_mxnets(shape, keys, train, rng):
    compare(*pair(**keys), {"data": 3 * random(rng, *shape)}, rng, train=train)


@pytest.mark.parametrize("shape", [(2, 7, 5, 3), (3, 7), (2, 5, 9)], ids=str)
def test_numeric_gradients(shape, rng):
    numeric_gradients(pair(nsize=5, alpha=0.9, knorm=1.5)[0], {"data": rng.standard_normal(shape)}, rng)


def test_half_precision(rng):
    x = random(rng, 2, 8, 5, 5, dtype="float16")
    ours, native = pair(nsize=5, alpha=0.5)
    wide = evaluate(native, {"data": x.astype("float32")}).outputs[0]
    assert abs(evaluate(ours, {"data": x}).outputs[0] - wide).max() < 2e-3


@pytest.mark.parametrize(
    "keys, part",
    [
        ({}, "nsize nothing"),
        ({"nsize": 0}, "nsize 0"),
        ({"nsize": 3, "beta": "inf"}, "beta inf"),
        ({"nsize": 3, "size": 3}, "'size'"),
    ],
)
def test_wrong_attributes_are_named(keys, part):
    with pytest.raises(core.ProblemError) as caught:
        mx.sym.Custom(mx.sym.var("data"), op_type="ocl_lrn", **keys)
    assert str(caught.value).startswith("[ocl_lrn] got ") and part in str(caught.value)
    with pytest.raises(core.ProblemError, match="at least 2 axes"):
        mx.nd.Custom(mx.nd.zeros((3,)), op_type="ocl_lrn", nsize=3)
