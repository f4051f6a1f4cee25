"""Dense layers against the native ones: every axis, transposed weights, frozen blobs, changes of shape."""

from __future__ import annotations

import numpy as np
import pytest

caffe = pytest.importorskip("caffe")

from tests.caffe_layers.caffe_nets import compare, compare_shapes, gradients, inputs, layer, load

FORMS = {
    "images": ("num_output: 7", (3, 4, 5, 2)),
    "matrix": ("num_output: 33", (5, 40)),
    "one row": ("num_output: 10", (1, 65)),
    "many rows": ("num_output: 20", (70, 30)),
    "no bias": ("num_output: 7 bias_term: false", (3, 4, 5, 2)),
    "one output": ("num_output: 1", (6, 9)),
    "axis 2": ("num_output: 6 axis: 2", (3, 4, 5, 2)),
    "axis -1": ("num_output: 6 axis: -1", (3, 4, 5)),
    "axis 0": ("num_output: 6 axis: 0", (3, 4, 5)),
    "a vector": ("num_output: 6 axis: 0", (9,)),
    "transposed": ("num_output: 7 transpose: true", (3, 4, 5, 2)),
    "transposed, axis 2, no bias": ("num_output: 6 transpose: true axis: 2 bias_term: false", (3, 4, 5, 2)),
    "transposed, many rows": ("num_output: 50 transpose: true", (70, 30)),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_parameters_equals_native(form):
    parameters, shape = FORMS[form]
    compare("InnerProduct", f"inner_product_param {{ {parameters} }}", {"x": shape})


def test_equals_native_in_test_phase():
    compare("InnerProduct", "inner_product_param { num_output: 7 }", {"x": (3, 5)}, phase=1)


@pytest.mark.parametrize(
    "filler", ['type: "xavier"', 'type: "gaussian" std: 0.1 sparse: 2', 'type: "msra"', "value: 3"]
)
@pytest.mark.parametrize("transpose", ["false", "true"])
def test_fillers_equal_native(filler, transpose):
    parameters = (
        f"inner_product_param {{ num_output: 6 transpose: {transpose} weight_filler {{ {filler} }} "
        'bias_filler { type: "uniform" min: 3 max: 4 } }'
    )
    found = []
    for ours in (False, True):
        caffe.set_random_seed(11)
        net = load(inputs({"x": (2, 5)}) + layer("InnerProduct", parameters, ours=ours))
        found.append([blob.data.copy() for blob in net.params["op"]])
    for native, our in zip(*found):
        assert np.array_equal(native, our)


def test_frozen_blobs_get_no_gradient():
    parameters = "param { lr_mult: 0 } param { lr_mult: 0 } inner_product_param { num_output: 4 }"
    net = load(inputs({"x": (2, 5)}) + layer("InnerProduct", parameters, ours=True) + "force_backward: true")
    net.forward()
    for blob in net.params["op"]:
        blob.diff[...] = np.nan
    net.blobs["y"].diff[...] = 1
    net.backward()
    assert all(np.isnan(blob.diff).all() for blob in net.params["op"])


@pytest.mark.python_layers
def test_the_batch_may_change_and_the_inputs_may_not():
    shapes = ((9, 3, 4), (1, 3, 4), (0, 3, 4), (5, 12), (2, 3, 4))
    net = compare_shapes("InnerProduct", "inner_product_param { num_output: 6 }", (2, 3, 4), shapes)
    net.blobs["x"].reshape(2, 3, 5)
    with pytest.raises(Exception, match=r"\[dense\] got 15 inputs of shape \(2, 3, 5\), expected 12"):
        net.reshape()


def test_two_runs_give_the_same_bits():
    net = load(
        inputs({"x": (9, 500)})
        + layer("InnerProduct", "inner_product_param { num_output: 60 }", ours=True)
        + "force_backward: true"
    )
    random = np.random.default_rng(1)
    net.params["op"][0].data[...] = random.standard_normal((60, 500))
    x, dy = random.standard_normal((9, 500)).astype(np.float32), random.standard_normal((9, 60)).astype(np.float32)
    start = [np.zeros(blob.data.shape, np.float32) for blob in net.params["op"]]
    first, second = (gradients(net, {"x": x}, {"y": dy}, start) for _ in range(2))
    assert all(first[name].tobytes() == second[name].tobytes() for name in first)


WRONG = {
    "inner_product_param { }": "num_output 0, expected at least 1",
    "inner_product_param { num_output: 4 axis: 3 }": "axis 3, expected an axis of 3 dimensions",
    "inner_product_param { num_output: 4 axis: -4 }": "axis -4, expected an axis of 3 dimensions",
}


@pytest.mark.python_layers
@pytest.mark.parametrize("parameters", WRONG)
def test_wrong_parameters_are_told_and_printed(parameters, caplog):
    with pytest.raises(Exception, match=r"\[dense\] got .*, expected"):
        load(inputs({"x": (2, 3, 5)}) + layer("InnerProduct", parameters, ours=True))
    printed = caplog.text
    assert "clgraft: OclInnerProduct 'op' failed in" in printed
    assert f"[dense] got {WRONG[parameters]}" in printed


@pytest.mark.python_layers
def test_several_bottoms_and_in_place_are_refused():
    parameters = "inner_product_param { num_output: 5 }"
    with pytest.raises(Exception, match=r"\[dense\] got 2 bottom blobs, expected 1"):
        load(
            inputs({"x": (2, 5), "z": (2, 5)})
            + layer("InnerProduct", parameters, ours=True, bottoms=["x", "z"], tops=["y", "v"])
        )
    with pytest.raises(Exception, match="got a top that is its own bottom"):
        load(inputs({"x": (2, 5)}) + layer("InnerProduct", parameters, ours=True, tops=["x"]))
