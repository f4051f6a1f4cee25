"""Convolution layers against the native ones: every shape, several bottoms, axes, shared and frozen weights."""

from __future__ import annotations

import numpy as np
import pytest

caffe = pytest.importorskip("caffe")

from clgraft import core
from tests.caffe_layers.caffe_nets import (
    close,
    compare,
    compare_shapes,
    expect_frozen_weights_without_gradient,
    gradients,
    inputs,
    layer,
    load,
)
from tests.problem_sets import problem_lines

PROBLEMS = {name: core.parse(text) for name, text in problem_lines("conv").items()}
# Caffe pads both sides alike, and a blob that never held anything is fatal to all its layers.
CAFFE = {name: problem for name, problem in PROBLEMS.items() if problem.pad_begin == problem.pad_end and problem.batch}


def repeated(name: str, values: tuple[int, ...]) -> str:
    return " ".join(f"{name}: {value}" for value in values)


def as_prototxt(problem: core.ConvProblem) -> str:
    """Write a problem as convolution_param."""
    return (
        f"convolution_param {{ num_output: {problem.out_channels} group: {problem.groups} "
        f"bias_term: {str(problem.bias).lower()} "
        + " ".join(
            repeated(name, getattr(problem, field))
            for name, field in (
                ("kernel_size", "kernel"),
                ("stride", "stride"),
                ("pad", "pad_begin"),
                ("dilation", "dilate"),
            )
        )
        + " }"
    )


@pytest.mark.parametrize("name", CAFFE)
def test_every_problem_equals_native(name):
    problem = CAFFE[name]
    x = problem.arguments()[0].shape
    cls = "OclDepthwiseConvolution" if problem.depthwise else None
    compare("Convolution", as_prototxt(problem), {"x": x}, cls=cls)


PARAMETERS = "convolution_param { num_output: 6 kernel_size: 3 pad: 1 stride: 2 }"
OTHER_FORMS = {
    "two bottoms": (PARAMETERS, {"x": (2, 3, 7, 5), "z": (2, 3, 7, 5)}, ("y", "v")),
    "three bottoms, no bias": (
        "convolution_param { num_output: 2 kernel_size: 2 bias_term: false }",
        {"x": (1, 3, 4, 5), "z": (1, 3, 4, 5), "q": (1, 3, 4, 5)},
        ("y", "v", "u"),
    ),
    "height and width": (
        "convolution_param { num_output: 4 kernel_h: 3 kernel_w: 2 stride_h: 1 stride_w: 2 pad_h: 2 pad_w: 0 }",
        {"x": (2, 3, 7, 8)},
        ("y",),
    ),
    "mixed forms": (
        "convolution_param { num_output: 4 kernel_size: 3 stride: 1 stride: 2 pad_h: 2 pad_w: 1 dilation: 2 }",
        {"x": (2, 3, 9, 8)},
        ("y",),
    ),
    "axis 2": ("convolution_param { num_output: 4 kernel_size: 3 axis: 2 }", {"x": (2, 3, 4, 6, 5)}, ("y",)),
    "axis -3": ("convolution_param { num_output: 4 kernel_size: 3 axis: -3 group: 2 }", {"x": (2, 3, 4, 6, 5)}, ("y",)),
    "axis 0": ("convolution_param { num_output: 4 kernel_size: 3 axis: 0 }", {"x": (3, 6, 5)}, ("y",)),
    "no spatial axes": ("convolution_param { num_output: 4 axis: 1 }", {"x": (5, 7)}, ("y",)),
    "no spatial axes, axis -1": ("convolution_param { num_output: 4 axis: -1 group: 2 }", {"x": (5, 3, 6)}, ("y",)),
    "3-D": (
        "convolution_param { num_output: 4 pad: 1 "
        "kernel_size: 3 kernel_size: 2 kernel_size: 1 stride: 1 stride: 2 stride: 1 }",
        {"x": (2, 3, 4, 6, 5)},
        ("y",),
    ),
    "engine": (
        "convolution_param { num_output: 4 kernel_size: 3 engine: CAFFE force_nd_im2col: true }",
        {"x": (2, 3, 6, 5)},
        ("y",),
    ),
}


@pytest.mark.parametrize("form", OTHER_FORMS)
def test_every_form_of_parameters_equals_native(form):
    parameters, shapes, tops = OTHER_FORMS[form]
    compare("Convolution", parameters, shapes, tops=tops)


def test_equals_native_in_test_phase():
    compare("Convolution", PARAMETERS, {"x": (2, 3, 7, 5)}, phase=1)


@pytest.mark.parametrize("multiplier", [1, 2])
@pytest.mark.parametrize("dilation", [1, 2])
def test_depthwise_equals_native_convolutions_of_single_channels(multiplier, dilation):
    """Slice, one native convolution per channel, Concat: what a depthwise convolution means."""
    channels, form = 5, f"kernel_size: 3 pad: 2 stride: 2 dilation: {dilation}"
    single = f"convolution_param {{ num_output: {multiplier} {form} }}"
    names = [f"c{i}" for i in range(channels)]
    apart = (
        inputs({"x": (2, channels, 9, 8)})
        + 'layer { name: "slice" type: "Slice" bottom: "x" '
        + " ".join(f'top: "{n}"' for n in names)
        + " }\n"
        + "".join(layer("Convolution", single, ours=False, name=n, bottoms=[n], tops=[n + "y"]) for n in names)
        + layer("Concat", ours=False, name="concat", bottoms=[n + "y" for n in names])
        + "force_backward: true"
    )
    parameters = f"convolution_param {{ num_output: {channels * multiplier} group: {channels} {form} }}"
    together = (
        inputs({"x": (2, channels, 9, 8)})
        + layer("DepthwiseConvolution", parameters, ours=True)
        + "force_backward: true"
    )
    native, ours = load(apart), load(together)
    random = np.random.default_rng(5)
    w, b = (random.standard_normal(blob.data.shape).astype(np.float32) for blob in ours.params["op"])
    for blob, values in zip(ours.params["op"], (w, b)):
        blob.data[...] = values
    for i, name in enumerate(names):
        rows = slice(i * multiplier, (i + 1) * multiplier)
        native.params[name][0].data[...] = w[rows]
        native.params[name][1].data[...] = b[rows]
    x = random.standard_normal((2, channels, 9, 8)).astype(np.float32)
    dy = random.standard_normal(ours.blobs["y"].data.shape).astype(np.float32)
    expected = gradients(native, {"x": x}, {"y": dy})
    got = gradients(ours, {"x": x}, {"y": dy}, [np.zeros_like(w), np.zeros_like(b)])
    close(got["y data"], expected["y data"], "y")
    close(got["x diff"], expected["x diff"], "dx")
    for i in range(2):
        parts = [native.params[name][i].diff for name in names]
        close(got[f"blob {i} diff"], np.concatenate(parts), f"blob {i}")


def test_convolution_depthwise_of_the_forks_ignores_group_and_outputs():
    net = load(
        inputs({"x": (2, 5, 7, 6)})
        + layer(
            "ConvolutionDepthwise",
            "convolution_param { num_output: 1 kernel_size: 3 pad: 1 }",
            ours=True,
            cls="OclDepthwiseConvolution",
        )
    )
    assert [blob.data.shape for blob in net.params["op"]] == [(5, 1, 3, 3), (5,)]
    assert net.blobs["y"].data.shape == (2, 5, 7, 6)


def test_a_bottom_that_needs_no_gradient_is_left_alone():
    nets = [load(inputs({"x": (2, 3, 7, 5)}) + layer("Convolution", PARAMETERS, ours=ours)) for ours in (False, True)]
    for net in nets:
        net.blobs["x"].data[...] = np.random.default_rng(1).standard_normal((2, 3, 7, 5))
        net.forward()
        net.blobs["x"].diff[...] = np.nan
        net.blobs["y"].diff[...] = 1
        net.params["op"][0].diff[...] = 0
        net.backward()
        assert np.isnan(net.blobs["x"].diff).all()
    close(nets[1].params["op"][0].diff, nets[0].params["op"][0].diff, "dw")


def test_a_frozen_blob_gets_no_gradient():
    expect_frozen_weights_without_gradient("Convolution", PARAMETERS, (2, 3, 7, 5))


def test_reshape_between_calls():
    shapes = ((4, 3, 9, 11), (1, 3, 3, 2), (2, 3, 7, 5), (0, 3, 7, 5), (3, 3, 20, 21))
    compare_shapes("Convolution", PARAMETERS, (2, 3, 7, 5), shapes)


def test_two_runs_give_the_same_bits():
    parameters = "convolution_param { num_output: 6 kernel_size: 3 group: 3 }"
    net = load(inputs({"x": (3, 9, 8, 7)}) + layer("Convolution", parameters, ours=True) + "force_backward: true")
    random = np.random.default_rng(1)
    net.params["op"][0].data[...] = random.standard_normal(net.params["op"][0].data.shape)
    x = random.standard_normal((3, 9, 8, 7)).astype(np.float32)
    dy = random.standard_normal(net.blobs["y"].data.shape).astype(np.float32)
    start = [np.zeros(blob.data.shape, np.float32) for blob in net.params["op"]]
    first, second = (gradients(net, {"x": x}, {"y": dy}, start) for _ in range(2))
    assert all(first[name].tobytes() == second[name].tobytes() for name in first)


WRONG = {
    "convolution_param { kernel_size: 3 }": "num_output 0",
    "convolution_param { num_output: 4 }": "kernel_size ()",
    "convolution_param { num_output: 4 kernel_size: 0 }": "kernel_size (0, 0)",
    "convolution_param { num_output: 4 kernel_size: 3 stride: 0 }": "stride (0, 0)",
    "convolution_param { num_output: 4 kernel_size: 3 kernel_h: 3 }": "kernel_size together with",
    "convolution_param { num_output: 4 kernel_size: 3 group: 2 }": "3 input channels",
    "convolution_param { num_output: 4 kernel_size: 3 group: 3 }": "4 num_output",
    "convolution_param { num_output: 4 kernel_size: 3 stride: 1 stride: 1 stride: 1 }": "stride (1, 1, 1)",
    "convolution_param { num_output: 4 kernel_size: 9 }": "kernel (9, 9)",
    "convolution_param { num_output: 4 kernel_size: 3 axis: 4 }": "axis 4",
}


@pytest.mark.python_layers
@pytest.mark.parametrize("parameters", WRONG)
def test_wrong_parameters_are_told_and_printed(parameters, caplog):
    with pytest.raises(Exception, match=r"\[conv\] got .*, expected"):
        load(inputs({"x": (2, 3, 7, 5)}) + layer("Convolution", parameters, ours=True))
    printed = caplog.text
    assert "clgraft: OclConvolution 'op' failed in" in printed
    assert f"[conv] got {WRONG[parameters]}" in printed


def python_layer(cls: str, text: str) -> str:
    return (
        f'layer {{ name: "op" type: "Python" bottom: "x" top: "y" '
        f"python_param {{ module: 'clgraft.caffe_layers' layer: '{cls}' param_str: '{text}' }} }}"
    )


@pytest.mark.python_layers
def test_text_that_is_no_layer_is_told(caplog):
    with pytest.raises(Exception, match=r"got .*many"):
        load(inputs({"x": (2, 3, 7, 5)}) + python_layer("OclConvolution", "convolution_param { num_output: many }"))
    assert "clgraft: OclConvolution (convolution_param { num_output: many })" in caplog.text


@pytest.mark.python_layers
def test_parameters_of_another_type_are_refused():
    with pytest.raises(Exception, match=r"\[conv\] got type 'ReLU', expected one of \('Convolution',\)"):
        load(inputs({"x": (2, 3, 7, 5)}) + python_layer("OclConvolution", 'type: "ReLU"'))


@pytest.mark.python_layers
def test_in_place_is_refused():
    text = inputs({"x": (2, 3, 7, 5)})
    parameters = "convolution_param { num_output: 3 kernel_size: 3 pad: 1 }"
    with pytest.raises(Exception, match="got a top that is its own bottom"):
        load(text + layer("Convolution", parameters, ours=True, tops=["x"]))
