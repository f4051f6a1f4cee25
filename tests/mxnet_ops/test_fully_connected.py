"""FullyConnected compared with MXNet's own."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest

from clgraft.core import ClgraftError
from tests.mxnet_ops.operator_checks import (
    assert_close,
    compare,
    evaluate,
    expect_rounded_half_precision,
    numeric_gradients,
    random,
)

CASES = {
    "matrix": ((5, 37), {"num_hidden": 11}),
    "images": ((3, 4, 5, 6), {"num_hidden": 10}),
    "no bias": ((8, 33), {"num_hidden": 40, "no_bias": True}),
    "last axis": ((3, 4, 5, 6), {"num_hidden": 7, "flatten": False}),
    "last axis of a matrix": ((3, 40), {"num_hidden": 7, "flatten": False, "no_bias": True}),
    "one row": ((1, 65), {"num_hidden": 9}),
    "one hidden": ((6, 20), {"num_hidden": 1}),
    "a vector of rows": ((4,), {"num_hidden": 5}),
    "many rows": ((130, 70), {"num_hidden": 50}),
}


def symbols(keys: dict) -> tuple:
    data = mx.sym.var("data")
    ours = mx.sym.Custom(data, op_type="ocl_fully_connected", name="f", **keys)
    return ours, mx.sym.FullyConnected(data, name="f", **keys)


def inputs(shape: tuple, keys: dict, rng, dtype: str) -> dict[str, np.ndarray]:
    _, native = symbols(keys)
    shapes = native.infer_shape(data=shape)[0]
    return {name: random(rng, *s, dtype=dtype) for name, s in zip(native.list_arguments(), shapes)}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", CASES)
def test_it_is_mxnets_forward_backward_and_under_every_request(name, dtype, rng):
    shape, keys = CASES[name]
    compare(*symbols(keys), inputs(shape, keys, rng, dtype), rng, dtype=dtype)


def test_numeric_gradients(rng):
    shape, keys = CASES["images"]
    numeric_gradients(symbols(keys)[0], inputs(shape, keys, rng, "float64"), rng)


@pytest.mark.parametrize("name", ["images", "last axis", "many rows"])
def test_half_precision_is_the_float32_result_rounded(name, rng):
    shape, keys = CASES[name]
    expect_rounded_half_precision(*symbols(keys), inputs(shape, keys, rng, "float16"), rng)


def test_shapes_and_types_follow_from_data_alone():
    symbol, native = symbols({"num_hidden": 6})
    assert symbol.list_arguments() == native.list_arguments()
    assert symbol.infer_shape(data=(2, 4, 9)) == native.infer_shape(data=(2, 4, 9))
    assert symbol.infer_type(data="float64") == native.infer_type(data="float64")
    ours, other = symbols({"num_hidden": 6, "flatten": False, "no_bias": True})
    assert ours.infer_shape(data=(2, 4, 9)) == other.infer_shape(data=(2, 4, 9))


def test_the_last_axis_of_a_vector(rng):
    """MXNet gives the shape of a vector, too; its gradient of it fails."""
    x, w = random(rng, 7), random(rng, 5, 7)
    got = mx.nd.Custom(
        mx.nd.array(x), mx.nd.array(w), op_type="ocl_fully_connected", num_hidden=5, no_bias=True, flatten=False
    )
    assert_close(got.asnumpy(), w @ x)


def test_no_rows():
    with mx.util.np_shape(True):
        x, w, b = mx.nd.zeros((0, 3, 5)), mx.nd.ones((4, 15)), mx.nd.ones((4,))
        for array in (x, w, b):
            array.attach_grad()
            array.grad[:] = np.nan
        with mx.autograd.record():
            y = mx.nd.Custom(x, w, b, op_type="ocl_fully_connected", num_hidden=4)
        y.backward()
        assert y.shape == (0, 4) and x.grad.shape == x.shape
        assert (w.grad.asnumpy() == 0).all() and (b.grad.asnumpy() == 0).all()


def test_two_runs_give_the_same_bits(rng):
    shape, keys = CASES["many rows"]
    ours, _ = symbols(keys)
    arrays = inputs(shape, keys, rng, "float32")
    head = random(rng, 130, 50)
    one, other = evaluate(ours, arrays, [head]), evaluate(ours, arrays, [head])
    assert (one.outputs[0] == other.outputs[0]).all()
    assert all((one.gradients[name] == other.gradients[name]).all() for name in arrays)


WRONG = [
    ({}, "num_hidden nothing, expected"),
    ({"num_hidden": 0}, "num_hidden 0, expected a whole number from 1"),
    ({"num_hidden": 4, "flatten": "some"}, "flatten 'some', expected True or False"),
    ({"num_hidden": 4, "axis": 1}, "attribute 'axis', expected one of"),
    ({"num_hidden": 5}, "weight of shape (4, 6), expected shape (5, 6)"),
    ({"num_hidden": 4, "flatten": False}, "weight of shape (4, 6), expected shape (4, 2)"),
]


@pytest.mark.parametrize("keys, text", WRONG, ids=[text for _, text in WRONG])
def test_errors_name_the_attribute(keys, text):
    with pytest.raises(ClgraftError) as error:
        mx.nd.Custom(mx.nd.ones((2, 3, 2)), mx.nd.ones((4, 6)), mx.nd.ones(4), op_type="ocl_fully_connected", **keys)
    assert str(error.value).startswith("[ocl_fully_connected]") and text in str(error.value)
