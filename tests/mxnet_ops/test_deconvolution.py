"""Deconvolution compared with MXNet's own."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest
from mxnet.base import MXNetError

from clgraft import core
from clgraft.core import ClgraftError
from tests.mxnet_ops.operator_checks import (
    assert_close,
    compare,
    expect_rounded_half_precision,
    numeric_gradients,
    random,
)
from tests.problem_sets import problem_lines

PROBLEMS = {name: core.parse(text) for name, text in problem_lines("deconvolution").items()}


def stated(problem: core.DeconvProblem) -> bool:
    """Whether MXNet's attributes can say it, and its own operator has it."""
    adjusted = all(a < s for a, s in zip(problem.adj, problem.stride))
    return problem.pad_begin == problem.pad_end and problem.batch > 0 and adjusted


STATED = {name: problem for name, problem in PROBLEMS.items() if stated(problem)}


def attributes(problem: core.DeconvProblem) -> dict:
    return {
        "kernel": problem.kernel,
        "stride": problem.stride,
        "dilate": problem.dilate,
        "pad": problem.pad_begin,
        "adj": problem.adj,
        "num_filter": problem.out_channels,
        "num_group": problem.groups,
        "no_bias": not problem.bias,
    }


def symbols(keys: dict) -> tuple:
    data = mx.sym.var("data")
    return mx.sym.Custom(data, op_type="ocl_deconv", name="c", **keys), mx.sym.Deconvolution(data, name="c", **keys)


def inputs(problem: core.DeconvProblem, rng, dtype: str) -> dict[str, np.ndarray]:
    names = {"x": "data", "w": "c_weight", "b": "c_bias"}
    return {names[a.name]: random(rng, *a.shape, dtype=dtype) for a in problem.arguments() if a.name != "y"}


@pytest.mark.parametrize("name", STATED)
def test_it_is_mxnets_forward_backward_and_under_every_request(name, rng):
    problem = STATED[name]
    # in double precision MXNet has no 3-D, and is wrong where both stride and dilation are above 1
    dilated = any(d > 1 and s > 1 for d, s in zip(problem.dilate, problem.stride))
    dtype = "float32" if problem.ndim == 3 or dilated else "float64"
    compare(*symbols(attributes(problem)), inputs(problem, rng, dtype), rng, dtype=dtype)


@pytest.mark.parametrize("name", ["same-3x3-bias", "twice-3x3-adj", "groups-2", "depthwise-twice", "1d"])
def test_it_is_mxnets_in_single_precision(name, rng):
    compare(
        *symbols(attributes(PROBLEMS[name])), inputs(PROBLEMS[name], rng, "float32"), rng, requests=["write", "add"]
    )


@pytest.mark.parametrize("name", ["twice-3x3-adj", "dilate-3-stride-2", "3d"])
def test_numeric_gradients(name, rng):
    problem = PROBLEMS[name]
    numeric_gradients(symbols(attributes(problem))[0], inputs(problem, rng, "float64"), rng)


@pytest.mark.parametrize("name", ["twice-3x3-adj", "depthwise-twice"])
def test_half_precision_is_the_float32_result_rounded(name, rng):
    problem = PROBLEMS[name]
    expect_rounded_half_precision(*symbols(attributes(problem)), inputs(problem, rng, "float16"), rng)


TARGETS = {
    "whole": ((11, 13), {}),
    "one less": ((10, 12), {}),
    "mixed": ((9, 12), {}),
    "smallest": ((1, 1), {}),
    "pad and adj are ignored": ((8, 9), {"pad": (99, 99), "adj": (101, 101)}),
    "zeros are none": ((0, 0), {"pad": (1, 1), "adj": (1, 0)}),
    "dilated": ((7, 8), {"dilate": (2, 2), "stride": (1, 1)}),
    "stride 3": ((13, 17), {"stride": (3, 3)}),
}


@pytest.mark.parametrize("name", TARGETS)
def test_target_shape(name, rng):
    target, more = TARGETS[name]
    keys = {"kernel": (3, 3), "stride": (2, 2), "num_filter": 4, "no_bias": False, "target_shape": target, **more}
    arrays = {
        "data": random(rng, 2, 3, 5, 6, dtype="float64"),
        "c_weight": random(rng, 3, 4, 3, 3, dtype="float64"),
        "c_bias": random(rng, 4, dtype="float64"),
    }
    compare(*symbols(keys), arrays, rng, dtype="float64", requests=["write"])


def test_target_shape_of_any_parity_at_stride_1(rng):
    """MXNet refuses an odd surplus here; it is taken away as at other strides, the larger half from the beginning."""
    x, w = random(rng, 1, 2, 5, 6), random(rng, 2, 3, 3, 3)
    keys = {"kernel": (3, 3), "num_filter": 3}
    whole = mx.nd.Deconvolution(mx.nd.array(x), mx.nd.array(w), **keys).asnumpy()
    got = mx.nd.Custom(mx.nd.array(x), mx.nd.array(w), op_type="ocl_deconv", target_shape=(6, 5), **keys)
    assert_close(got.asnumpy(), whole[:, :, 1:, 2:-1])


def test_shapes_and_names_follow_from_data_alone():
    symbol = mx.sym.Custom(
        mx.sym.var("data"), op_type="ocl_deconv", kernel=(3, 5), stride=(2, 1), num_filter=6, num_group=2, name="c"
    )
    assert symbol.list_arguments() == ["data", "c_weight"]  # no bias by default, as MXNet's
    assert symbol.infer_shape(data=(2, 4, 9, 11))[:2] == ([(2, 4, 9, 11), (4, 3, 3, 5)], [(2, 6, 19, 15)])


def test_no_images():
    with mx.util.np_shape(True):
        x, w = mx.nd.zeros((0, 3, 5, 5)), mx.nd.ones((3, 4, 3, 3))
        for array in (x, w):
            array.attach_grad()
            array.grad[:] = np.nan
        with mx.autograd.record():
            y = mx.nd.Custom(x, w, op_type="ocl_deconv", kernel=(3, 3), num_filter=4)
        y.backward()
        assert y.shape == (0, 4, 7, 7)
        assert (w.grad.asnumpy() == 0).all()


WRONG = [
    ({"adj": (2, 0)}, "adj (2, 0), expected less than stride (2, 2)"),
    ({"adj": (1,)}, "adj (1,), expected 2 numbers"),
    ({"target_shape": (12, 13)}, "target_shape (12, 13), expected at most (11, 13)"),
    ({"target_shape": (0, 12)}, "target_shape (0, 12), expected numbers from 1"),
    ({"pad": (6, 6)}, "pad_begin (6, 6), expected an output of 1 or more"),
    ({"num_group": 2}, "in_channels 3, expected a multiple of groups 2"),
    ({"num_group": 3}, "num_filter 4, expected a multiple of num_group 3"),
    ({"layout": "NDHWC"}, "layout 'NDHWC', expected"),
    ({"kernel": (3,)}, "stride (2, 2), expected 1 numbers"),
]


@pytest.mark.parametrize("keys, text", WRONG, ids=[text for _, text in WRONG])
def test_errors_name_the_attribute(keys, text):
    given = {"kernel": (3, 3), "stride": (2, 2), "num_filter": 4, **keys}
    with pytest.raises(ClgraftError) as error:
        mx.nd.Custom(mx.nd.ones((2, 3, 5, 6)), mx.nd.ones((3, 4, 3, 3)), op_type="ocl_deconv", **given)
    assert str(error.value).startswith("[ocl_deconv]") and text in str(error.value)


def test_a_wrong_weight_is_told():
    with pytest.raises(ClgraftError, match=r"weight of shape \(4, 3, 3, 3\), expected shape \(3, 4, 3, 3\)"):
        mx.nd.Custom(
            mx.nd.ones((1, 3, 4, 4)), mx.nd.ones((4, 3, 3, 3)), op_type="ocl_deconv", kernel=(3, 3), num_filter=4
        )
    with pytest.raises(MXNetError):
        mx.nd.Deconvolution(mx.nd.ones((1, 3, 4, 4)), mx.nd.ones((4, 3, 3, 3)), kernel=(3, 3), num_filter=4)
