"""Deconvolution layers against the native ones: every shape, several bottoms, axes, shared and frozen weights."""

from __future__ import annotations

import numpy as np
import pytest

caffe = pytest.importorskip("caffe")

from clgraft import core
from tests.caffe_layers.caffe_nets import (
    compare,
    compare_shapes,
    expect_frozen_weights_without_gradient,
    inputs,
    layer,
    load,
)
from tests.problem_sets import problem_lines

PROBLEMS = {name: core.parse(text) for name, text in problem_lines("deconvolution").items()}
# Caffe pads both sides alike, adds nothing to the end, and has single precision.
CAFFE = {
    name: problem
    for name, problem in PROBLEMS.items()
    if problem.pad_begin == problem.pad_end and not any(problem.adj) and problem.batch and problem.dtype == "float32"
}


def as_prototxt(problem: core.DeconvProblem) -> str:
    """Write a problem as convolution_param."""
    fields = {"kernel_size": "kernel", "stride": "stride", "pad": "pad_begin", "dilation": "dilate"}
    numbers = [f"{name}: {value}" for name, field in fields.items() for value in getattr(problem, field)]
    return (
        f"convolution_param {{ num_output: {problem.out_channels} group: {problem.groups} "
        f"bias_term: {str(problem.bias).lower()} {' '.join(numbers)} }}"
    )


@pytest.mark.parametrize("name", CAFFE)
def test_every_problem_equals_native(name):
    problem = CAFFE[name]
    compare("Deconvolution", as_prototxt(problem), {"x": problem.arguments()[0].shape})


PARAMETERS = "convolution_param { num_output: 6 kernel_size: 3 pad: 1 stride: 2 }"
OTHER_FORMS = {
    "two bottoms": (PARAMETERS, {"x": (2, 3, 4, 5), "z": (2, 3, 4, 5)}, ("y", "v")),
    "three bottoms, no bias": (
        "convolution_param { num_output: 2 kernel_size: 2 bias_term: false }",
        {"x": (1, 3, 4, 5), "z": (1, 3, 4, 5), "q": (1, 3, 4, 5)},
        ("y", "v", "u"),
    ),
    "height and width": (
        "convolution_param { num_output: 4 kernel_h: 3 kernel_w: 2 stride_h: 1 stride_w: 2 pad_h: 1 pad_w: 0 }",
        {"x": (2, 3, 4, 5)},
        ("y",),
    ),
    "axis 2": ("convolution_param { num_output: 4 kernel_size: 3 axis: 2 }", {"x": (2, 3, 4, 6, 5)}, ("y",)),
    "axis -3": ("convolution_param { num_output: 4 kernel_size: 3 axis: -3 group: 2 }", {"x": (2, 3, 4, 6, 5)}, ("y",)),
    "axis 0": ("convolution_param { num_output: 4 kernel_size: 3 axis: 0 }", {"x": (3, 6, 5)}, ("y",)),
    "no spatial axes": ("convolution_param { num_output: 4 axis: 1 }", {"x": (5, 7)}, ("y",)),
    "n-D": ("convolution_param { num_output: 4 kernel_size: 2 stride: 2 dilation: 2 }", {"x": (2, 3, 2, 4, 3)}, ("y",)),
    "engine": (
        "convolution_param { num_output: 4 kernel_size: 3 engine: CAFFE force_nd_im2col: true }",
        {"x": (2, 3, 6, 5)},
        ("y",),
    ),
}


@pytest.mark.parametrize("form", OTHER_FORMS)
def test_every_form_of_parameters_equals_native(form):
    parameters, shapes, tops = OTHER_FORMS[form]
    compare("Deconvolution", parameters, shapes, tops=tops)


def test_equals_native_in_test_phase():
    compare("Deconvolution", PARAMETERS, {"x": (2, 3, 4, 5)}, phase=1)


UPSAMPLING = (
    "convolution_param { num_output: 4 group: 4 kernel_size: 4 stride: 2 pad: 1 bias_term: false "
    'weight_filler { type: "bilinear" } }'
)


@pytest.mark.parametrize("filler", ['type: "bilinear"', 'type: "xavier"', 'type: "msra" variance_norm: AVERAGE'])
def test_fillers_equal_native(filler):
    parameters = UPSAMPLING.replace('type: "bilinear"', filler)
    found = []
    for ours in (False, True):
        caffe.set_random_seed(11)
        net = load(inputs({"x": (1, 4, 3, 3)}) + layer("Deconvolution", parameters, ours=ours))
        found.append(net.params["op"][0].data.copy())
    assert np.array_equal(*found)


def test_bilinear_upsampling_interpolates():
    net = load(inputs({"x": (1, 4, 5, 5)}) + layer("Deconvolution", UPSAMPLING, ours=True))
    net.blobs["x"].data[...] = np.arange(5)[:, None] + 10 * np.arange(5)
    net.forward()
    inner = net.blobs["y"].data[..., 1:-1, 1:-1]
    between = np.arange(8) / 2 + 0.25
    assert np.allclose(inner, between[:, None] + 10 * between)


def test_a_frozen_blob_gets_no_gradient():
    expect_frozen_weights_without_gradient("Deconvolution", PARAMETERS, (2, 3, 4, 5))


def test_reshape_between_calls():
    shapes = ((4, 3, 9, 11), (1, 3, 3, 2), (2, 3, 4, 5))
    compare_shapes("Deconvolution", PARAMETERS, (2, 3, 4, 5), shapes)


WRONG = {
    "convolution_param { kernel_size: 3 }": "num_output 0",
    "convolution_param { num_output: 4 }": "kernel_size ()",
    "convolution_param { num_output: 4 kernel_size: 3 group: 2 }": "3 input channels",
    "convolution_param { num_output: 4 kernel_size: 3 group: 3 }": "4 num_output",
    "convolution_param { num_output: 4 kernel_size: 1 pad: 4 }": "pad_begin (4, 4)",
}


@pytest.mark.python_layers
@pytest.mark.parametrize("parameters", WRONG)
def test_wrong_parameters_are_told_and_printed(parameters, caplog):
    with pytest.raises(Exception, match=r"\[deconv\] got .*, expected"):
        load(inputs({"x": (2, 3, 7, 5)}) + layer("Deconvolution", parameters, ours=True))
    printed = caplog.text
    assert "clgraft: OclDeconvolution 'op' failed in" in printed
    assert f"[deconv] got {WRONG[parameters]}" in printed


@pytest.mark.python_layers
def test_in_place_is_refused():
    parameters = "convolution_param { num_output: 3 kernel_size: 3 pad: 1 }"
    with pytest.raises(Exception, match="got a top that is its own bottom"):
        load(inputs({"x": (2, 3, 7, 5)}) + layer("Deconvolution", parameters, ours=True, tops=["x"]))
