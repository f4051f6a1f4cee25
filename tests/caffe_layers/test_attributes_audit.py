"""Layers of elements, norms, joins and folds in configurations of Caffe's own tests that no other file here holds."""

from __future__ import annotations

import numpy as np
import pytest

caffe = pytest.importorskip("caffe")

from tests.caffe_layers.caffe_nets import close, compare, inputs, layer, load

MATRIX, PLANES = (5, 7), (2, 3, 4, 5)
RANDOM = np.random.default_rng(8)
POSITIVE = RANDOM.uniform(0.1, 2, MATRIX).astype(np.float32)
ELEMENTS = {
    "relu, slope below 0": ("ReLU", "relu_param { negative_slope: -0.5 engine: CAFFE }"),
    "relu, slope above 1": ("ReLU", "relu_param { negative_slope: 2 }"),
    "elu, alpha 0": ("ELU", "elu_param { alpha: 0 }"),
    "elu, alpha below 0": ("ELU", "elu_param { alpha: -0.5 }"),
    "sigmoid, engine": ("Sigmoid", "sigmoid_param { engine: CAFFE }"),
    "tanh, engine": ("TanH", "tanh_param { engine: CAFFE }"),
    "exp, base below 1": ("Exp", "exp_param { base: 0.5 scale: 2 }"),
    "exp, base 1": ("Exp", "exp_param { base: 1 shift: 3 }"),
    "exp, scale 0": ("Exp", "exp_param { scale: 0 shift: 1 }"),
    "log, base below 1": ("Log", "log_param { base: 0.5 scale: -0.1 shift: 3 }"),
    "power 1, scale 0": ("Power", "power_param { scale: 0 shift: -2.4 }"),
    "power 2, no shift": ("Power", "power_param { power: 2 scale: 0.83 }"),
    "power 2, negative shift": ("Power", "power_param { power: 2 scale: 0.5 shift: -2.4 }"),
    "power 0, scale": ("Power", "power_param { power: 0 scale: 3 shift: 2 }"),
    "power -1": ("Power", "power_param { power: -1 scale: 0.2 shift: 3 }"),
    "prelu, filler": ("PReLU", 'prelu_param { filler { type: "uniform" min: -1 max: 2 } }'),
}
OF_POSITIVE = {
    "root": ("Power", "power_param { power: 0.37 scale: 0.83 }"),
    "root, shift": ("Power", "power_param { power: 0.37 scale: 0.83 shift: 2.4 }"),
    "inverse root": ("Power", "power_param { power: -1.5 scale: 0.83 }"),
    "log": ("Log", ""),
    "log, base 10": ("Log", "log_param { base: 10 scale: 3 }"),
}


@pytest.mark.parametrize("name", ELEMENTS)
def test_elements_equal_native(name):
    compare(*ELEMENTS[name], {"x": MATRIX})


@pytest.mark.parametrize("name", OF_POSITIVE)
def test_elements_of_positive_values_equal_native(name):
    compare(*OF_POSITIVE[name], {"x": MATRIX}, data={"x": POSITIVE})


@pytest.mark.parametrize("beta", [0, -1, 0.5])
def test_swish_equals_native(beta):
    if "Swish" not in caffe.layer_type_list():
        pytest.skip("this Caffe has no Swish; test_shaping.py holds it to formulas")
    compare("Swish", f"swish_param {{ beta: {beta} }}", {"x": MATRIX})


AFFINE = {
    "three axes": ("axis: 1 num_axes: 3", {"x": (2, 3, 2, 3, 2)}),
    "images": ("axis: 0", {"x": PLANES, "g": (2,)}),
    "the middle": ("axis: 1", {"x": PLANES, "g": (3, 4)}),
    "the middle, from the end": ("axis: -3", {"x": PLANES, "g": (3, 4)}),
    "the end": ("axis: 2", {"x": PLANES, "g": (4, 5)}),
    "singletons": ("axis: 0", {"x": (1, 1, 1), "g": (1, 1, 1)}),
}


@pytest.mark.parametrize("tops", ["y", "x"])
@pytest.mark.parametrize("name", AFFINE)
@pytest.mark.parametrize("kind", ["Scale", "Bias"])
def test_affine_equals_native(kind, name, tops):
    fields, shapes = AFFINE[name]
    more = "bias_term: true" if kind == "Scale" else ""
    compare(kind, f"{kind.lower()}_param {{ {fields} {more} }}", shapes, tops=[tops])


ELTWISE = {
    "a coefficient of 0": "coeff: 0 coeff: -2 coeff: 1",
    "coefficients of 1": "coeff: 1 coeff: 1 coeff: 1",
    "product": "operation: PROD",
    "unstable product": "operation: PROD stable_prod_grad: false",
    "maximum": "operation: MAX",
}


@pytest.mark.parametrize("name", ELTWISE)
def test_eltwise_of_many_axes_equals_native(name):
    compare("Eltwise", f"eltwise_param {{ {ELTWISE[name]} }}", dict.fromkeys("abc", (2, 3, 2, 2, 3)))


@pytest.mark.python_layers
def test_eltwise_of_one_is_refused():
    with pytest.raises(Exception, match=r"\[eltwise\] got 1 bottom blobs, expected 2 or more"):
        load(inputs({"x": MATRIX}) + layer("Eltwise", ours=True))


NORMS = {
    "more channels than there are": ("LRN", "lrn_param { local_size: 15 }", (2, 7, 3, 3)),
    "larger than the planes": ("LRN", "lrn_param { local_size: 15 norm_region: WITHIN_CHANNEL }", (2, 7, 3, 3)),
    "one channel": ("LRN", "lrn_param { local_size: 5 }", (2, 1, 3, 4)),
    "negative alpha": ("LRN", "lrn_param { local_size: 3 alpha: -0.01 k: 2 }", (2, 7, 3, 3)),
    "beta 0.5": ("LRN", "lrn_param { local_size: 3 beta: 0.5 k: 1.5 }", (1, 9, 5, 3)),
    "beta 1, within": ("LRN", "lrn_param { local_size: 3 beta: 1 norm_region: WITHIN_CHANNEL }", (1, 2, 5, 3)),
    "mvn of a volume across": ("MVN", "mvn_param { across_channels: true }", (3, 5, 1, 1)),
    "mvn of columns": ("MVN", "", (3, 5, 9)),
    "mvn of a matrix": ("MVN", "mvn_param { across_channels: true }", (3, 11)),
    "mvn of a matrix, mean only": ("MVN", "mvn_param { normalize_variance: false across_channels: true }", (3, 11)),
    "softmax of one class": ("Softmax", "", (3, 1, 4)),
    "softmax of five axes": ("Softmax", "softmax_param { axis: -2 }", (2, 1, 3, 4, 2)),
    "softmax of many": ("Softmax", "", (3, 1000)),
}


@pytest.mark.parametrize("name", NORMS)
def test_norms_equal_native(name):
    kind, parameters, shape = NORMS[name]
    compare(kind, parameters, {"x": shape})


PARTS = {
    "concat of three axes": (
        "Concat",
        "concat_param { axis: 2 }",
        {"a": (3, 8, 2), "b": (3, 8, 5), "c": (3, 8, 1)},
        "y",
    ),
    "concat of five axes": ("Concat", "concat_param { axis: -3 }", {"a": (2, 3, 2, 2, 2), "b": (2, 3, 1, 2, 2)}, "y"),
    "slices of every size": (
        "Slice",
        "slice_param { slice_point: 1 slice_point: 2 slice_point: 5 slice_point: 6 }",
        {"x": (3, 8, 2)},
        "abcde",
    ),
    "slices of a vector": ("Slice", "slice_param { axis: 0 }", {"x": (6,)}, "abc"),
    "slices of five axes": ("Slice", "slice_param { axis: 3 slice_point: 1 }", {"x": (2, 1, 3, 4, 2)}, "ab"),
    "tiles of the last axis": ("Tile", "tile_param { axis: 3 tiles: 3 }", {"x": PLANES}, "y"),
    "tiles of a vector": ("Tile", "tile_param { axis: 0 tiles: 5 }", {"x": (3,)}, "y"),
    "sum of a vector": ("Reduction", "", {"x": (7,)}, "y"),
    "mean from axis 2": ("Reduction", "reduction_param { operation: MEAN axis: 2 coeff: -3 }", {"x": PLANES}, "y"),
    "nothing of squares": ("Reduction", "reduction_param { operation: SUMSQ axis: -2 coeff: 0 }", {"x": PLANES}, "y"),
    "dense, from the end": (
        "InnerProduct",
        "inner_product_param { num_output: 3 axis: -2 transpose: true bias_term: false }",
        {"x": PLANES},
        "y",
    ),
    "dense, five axes": ("InnerProduct", "inner_product_param { num_output: 3 axis: 3 }", {"x": (2, 1, 3, 2, 2)}, "y"),
    "dense, one by one": ("InnerProduct", "inner_product_param { num_output: 1 }", {"x": (1, 1)}, "y"),
}


@pytest.mark.parametrize("name", PARTS)
def test_parts_and_sums_equal_native(name):
    kind, parameters, shapes, tops = PARTS[name]
    compare(kind, parameters, shapes, tops=list(tops))


@pytest.mark.parametrize("weight", [1.0, -0.5])
@pytest.mark.parametrize(
    ("kind", "parameters"),
    [("Reduction", "reduction_param { operation: ASUM axis: 0 coeff: 0.25 }"), ("Power", "power_param { power: 2 }")],
)
def test_any_layer_may_be_a_loss(kind, parameters, weight):
    """A top with a loss weight: the sum of its elements counts, in Caffe and here."""
    results = []
    for ours in (False, True):
        text = inputs({"x": MATRIX}) + layer(kind, parameters, ours=ours, frame=f"loss_weight: {weight}")
        net = load(text + "force_backward: true")
        net.blobs["x"].data[...] = POSITIVE
        net.forward()
        net.backward()
        results.append((net.blobs["y"].data.copy(), net.blobs["x"].diff.copy()))
    close(results[1][0], results[0][0], "y")
    close(results[1][1], results[0][1], "dx")
    assert results[0][1].any()


@pytest.mark.parametrize("kind", ["Eltwise", "Concat", "Scale", "Bias"])
def test_propagate_down_is_obeyed(kind):
    """The net file may forbid a bottom's gradient: its memory then stays as it is."""
    parameters = f"{kind.lower()}_param {{ axis: 0 }}" if kind in ("Scale", "Bias") else ""
    learned = [layer("Scale", ours=False, name=f"to {to}", bottoms=[of], tops=[to]) for of, to in ("xa", "zb")]
    results = []
    for ours in (False, True):
        frame = "propagate_down: true propagate_down: false loss_weight: 1"
        net = load(
            inputs({"x": MATRIX, "z": MATRIX})
            + "".join(learned)
            + layer(kind, parameters, ours=ours, bottoms=["a", "b"], frame=frame)
        )
        for name, values in (("x", POSITIVE), ("z", -POSITIVE)):
            net.blobs[name].data[...] = values
        for name in "ab":
            net.blobs[name].diff[...] = 7
        net.forward()
        net.backward()
        assert (net.blobs["b"].diff == 7).all() and (net.blobs["a"].diff != 7).all()
        results.append(net.blobs["a"].diff.copy())
    close(results[1], results[0], "dx")
