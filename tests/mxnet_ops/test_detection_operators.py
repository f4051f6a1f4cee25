"""Operators of detection and segmentation nets that the zoo lacks, swapped, compared with MXNet's own."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest

import clgraft.mxnet_ops as ops
from clgraft import core
from tests.mxnet_ops.operator_checks import assert_close, compare, evaluate, random


def swapped(native: mx.sym.Symbol, op_type: str) -> mx.sym.Symbol:
    found, report = ops.swap_symbol(native)
    assert [row.became for row in report.replaced] == [op_type] and not report.kept, report
    assert found.list_arguments() == native.list_arguments() and found.list_outputs() == native.list_outputs()
    return found


@pytest.mark.parametrize("keys", [{}, {"output_size": 1}, {"output_size": (1, 1)}], ids=str)
def test_averages_of_whole_images(keys, rng):
    native = mx.sym.contrib.AdaptiveAvgPooling2D(mx.sym.var("data"), name="o", **keys)
    compare(swapped(native, "ocl_pooling"), native, {"data": random(rng, 2, 3, 7, 5)}, rng)


@pytest.mark.parametrize("shape", [(2, 3, 7, 5), (1, 2, 6, 8), (2, 1, 1, 3)], ids=str)
@pytest.mark.parametrize("size", [(2, 1), 2, (3, 4), (7, 5), (9, 2)], ids=str)
def test_averages_of_parts_of_images(size, shape, rng):
    native = mx.sym.contrib.AdaptiveAvgPooling2D(mx.sym.var("data"), output_size=size, name="o")
    compare(swapped(native, "ocl_adaptive_average_pooling"), native, {"data": random(rng, *shape)}, rng)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_averages_of_other_dtypes(dtype, rng):
    native = mx.sym.contrib.AdaptiveAvgPooling2D(mx.sym.var("data"), output_size=(3, 2), name="o")
    ours, data = swapped(native, "ocl_adaptive_average_pooling"), random(rng, 2, 3, 7, 5)
    head = random(rng, 2, 3, 3, 2)
    got, expected = (
        evaluate(symbol, {"data": data.astype(kind)}, [head.astype(kind)])
        for symbol, kind in ((ours, dtype), (native, "float32"))
    )
    assert_close(got.outputs[0], expected.outputs[0], "float16" if dtype == "float16" else "float32")
    assert_close(got.gradients["data"], expected.gradients["data"], "float16" if dtype == "float16" else "float32")


@pytest.mark.parametrize("fix_gamma", [True, False])
def test_batch_norm_of_one_device_in_name_of_many(fix_gamma, rng):
    keys = {"eps": 1e-4, "momentum": 0.8, "fix_gamma": fix_gamma}
    native = mx.sym.contrib.SyncBatchNorm(mx.sym.var("data"), key="o", ndev=1, name="o", **keys)
    found = swapped(native, "ocl_batchnorm")
    arrays = {"data": random(rng, 4, 3, 5, 6), "o_gamma": np.ones(3, "float32"), "o_beta": random(rng, 3)}
    states = {"o_moving_mean": random(rng, 3), "o_moving_var": 0.5 + rng.random(3).astype("float32")}
    compare(found, native, arrays, rng, auxiliary=states, requests=["write"])
    many = mx.sym.contrib.SyncBatchNorm(mx.sym.var("data"), key="o", ndev=2)
    assert "several devices" in ops.swap_symbol(many)[1].kept[0].reason


@pytest.mark.parametrize("name, channels", [("depth_to_space", 12), ("depth_to_space", 18), ("space_to_depth", 5)])
def test_blocks_of_pixels_as_channels(name, channels, rng):
    size = 3 if channels == 18 else 2
    data = mx.sym.var("data", dtype="float32")
    native = getattr(mx.sym, name)(data, block_size=size, name="o")
    found = swapped(native, "ocl_depth_to_space")
    compare(found, native, {"data": random(rng, 2, channels, 4, 6)}, rng)
    half = random(rng, 2, channels, 4, 6, dtype="float16")
    half_symbol = getattr(mx.sym, name)(mx.sym.var("data", dtype="float16"), block_size=size)
    np.testing.assert_array_equal(*(evaluate(s, {"data": half}).outputs[0] for s in (found, half_symbol)))


@pytest.mark.parametrize("name", ["log2", "log10"])
def test_functions_of_an_element(name, rng):
    native = getattr(mx.sym, name)(mx.sym.var("data", dtype="float64"), name="o")
    arrays = {"data": 0.1 + np.abs(random(rng, 4, 37, dtype="float64"))}
    compare(swapped(native, "ocl_activation"), native, arrays, rng, dtype="float64")


@pytest.mark.parametrize(
    "keys, shape, part",
    [
        ({}, (1, 4, 2, 2), "block_size nothing"),
        ({"block_size": 0}, (1, 4, 2, 2), "block_size 0"),
        ({"block_size": 2}, (1, 6, 2, 2), "a multiple of 4 channels"),
        ({"block_size": 2}, (4, 2, 2), "expected 4 axes"),
        ({"block_size": 2, "inverse": True}, (1, 4, 3, 2), "in blocks of 2"),
    ],
)
def test_what_is_refused_is_named(keys, shape, part):
    with pytest.raises(core.ProblemError) as caught:
        mx.nd.Custom(mx.nd.zeros(shape), op_type="ocl_depth_to_space", **keys)
    assert str(caught.value).startswith("[ocl_depth_to_space] got ") and part in str(caught.value)
