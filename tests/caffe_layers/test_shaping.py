"""Concat, Slice, Crop, Tile and Reduction against the native layers, and layers that only some Caffes have."""

from __future__ import annotations

import numpy as np
import pytest

caffe = pytest.importorskip("caffe")

from tests.caffe_layers.caffe_nets import close, compare, gradients, inputs, layer, load

X = (3, 4, 5, 6)
CONCAT = {
    "channels": ("", [X, (3, 1, 5, 6), (3, 7, 5, 6)]),
    "one": ("", [X]),
    "images": ("concat_param { axis: 0 }", [X, (1, 4, 5, 6)]),
    "columns": ("concat_param { axis: -1 }", [X, (3, 4, 5, 2)]),
    "old field": ("concat_param { concat_dim: 2 }", [X, X]),
    "matrix": ("concat_param { axis: 1 }", [(7, 3), (7, 1)]),
    "vectors": ("concat_param { axis: 0 }", [(7,), (3,)]),
}
SLICE = {
    "equal": ("", X, 2),
    "points": ("slice_param { slice_point: 1 slice_point: 3 }", X, 3),
    "images": ("slice_param { axis: 0 }", X, 3),
    "columns": ("slice_param { axis: -1 slice_point: 5 }", X, 2),
    "old field": ("slice_param { slice_dim: 2 slice_point: 2 }", X, 2),
    "one": ("", X, 1),
}
CROP = {
    "planes": ("", X, (1, 2, 3, 4)),
    "offset": ("crop_param { offset: 1 }", X, (9, 9, 4, 5)),
    "offsets": ("crop_param { axis: 2 offset: 2 offset: 0 }", X, (3, 4, 3, 6)),
    "channels": ("crop_param { axis: 1 offset: 2 offset: 1 offset: 0 }", X, (3, 2, 3, 5)),
    "last": ("crop_param { axis: -1 offset: 3 }", X, (1, 1, 1, 2)),
    "all": ("crop_param { axis: 0 }", X, (2, 2, 2, 2)),
}
TILE = {"channels": "tiles: 3", "images": "axis: 0 tiles: 2", "columns": "axis: -1 tiles: 4", "once": "tiles: 1"}
FOLDS = [f"{operation} {axis}" for operation in ("SUM", "ASUM", "SUMSQ", "MEAN") for axis in (0, 1, -1)]


@pytest.mark.parametrize("name", CONCAT)
def test_concat_equals_native(name):
    parameters, shapes = CONCAT[name]
    compare("Concat", parameters, {f"x{i}": shape for i, shape in enumerate(shapes)})


@pytest.mark.parametrize("name", SLICE)
def test_slice_equals_native(name):
    parameters, shape, count = SLICE[name]
    compare("Slice", parameters, {"x": shape}, tops=[f"y{i}" for i in range(count)])


@pytest.mark.parametrize("name", CROP)
def test_crop_equals_native(name):
    parameters, shape, like = CROP[name]
    random = np.random.default_rng(2)
    x = random.standard_normal(shape).astype(np.float32)
    results = []
    for ours in (False, True):
        text = inputs({"x": shape, "like": like}) + layer("Crop", parameters, ours=ours, bottoms=["x", "like"])
        net = load(text + "force_backward: true")
        dy = np.random.default_rng(3).standard_normal(net.blobs["y"].data.shape).astype(np.float32)
        results.append(gradients(net, {"x": x}, {"y": dy}, poison=ours))
    for key, expected in results[0].items():
        close(results[1][key], expected, key, 0)


@pytest.mark.parametrize("name", TILE)
def test_tile_equals_native(name):
    compare("Tile", f"tile_param {{ {TILE[name]} }}", {"x": X})


@pytest.mark.parametrize("name", FOLDS)
def test_reduction_equals_native(name):
    operation, axis = name.split()
    compare("Reduction", f"reduction_param {{ operation: {operation} axis: {axis} coeff: 1.5 }}", {"x": X})


def test_reduction_of_zeros_and_of_large_numbers():
    x = np.array([[0, -0.0, 3, -1e6], [1, 1, 1, 1]], np.float32)
    compare("Reduction", "reduction_param { operation: ASUM axis: 1 }", {"x": x.shape}, data={"x": x})


def test_a_gradient_for_some_bottoms_only():
    """A bottom that leads to nothing that learns gets no gradient: its memory stays."""
    learned = layer(
        "InnerProduct", "inner_product_param { num_output: 3 }", ours=False, name="ip", bottoms=["a"], tops=["x"]
    )
    joined = layer("Concat", ours=True, bottoms=["x", "z"], frame="loss_weight: 1")
    net = load(inputs({"a": (2, 4), "z": (2, 5)}) + learned + joined)
    net.forward()
    net.blobs["y"].diff[...] = 2
    net.blobs["x"].diff[...] = net.blobs["z"].diff[...] = np.nan
    net.backward()
    assert (net.blobs["x"].diff == 2).all() and np.isnan(net.blobs["z"].diff).all()


def test_new_shapes():
    net = load(inputs({"x": (2, 3), "z": (2, 5)}) + layer("Concat", ours=True, bottoms=["x", "z"]))
    for rows in (4, 0, 1):
        net.blobs["x"].reshape(rows, 3)
        net.blobs["z"].reshape(rows, 5)
        net.blobs["x"].data[...] = 1
        net.blobs["z"].data[...] = 2
        net.forward()
        assert net.blobs["y"].data.shape == (rows, 8)
        assert (net.blobs["y"].data == [1] * 3 + [2] * 5).all()


def native_has(kind: str) -> bool:
    return kind in caffe.layer_type_list()


def assert_slope(kind: str, parameters: str, forward, slope) -> None:
    """Compare with float64 formulas, in place and not; and with the native layer where this Caffe has it."""
    x = np.linspace(-4, 4, 81, dtype=np.float32).reshape(9, 9)
    dy = np.random.default_rng(1).standard_normal(x.shape).astype(np.float32)
    for top in ("y", "x"):
        text = inputs({"x": x.shape}) + layer(kind, parameters, ours=True, tops=[top]) + "force_backward: true"
        found = gradients(load(text), {"x": x}, {top: dy})
        close(found[f"{top} data"], forward(x.astype(np.float64)), "y", 1e-6)
        close(found["x diff"], dy * slope(x.astype(np.float64)), "dx", 2e-6)
    if native_has(kind):
        compare(kind, parameters, {"x": x.shape})


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


@pytest.mark.parametrize("beta", [1, 0.5, 3])
def test_swish(beta):
    def slope(x):
        s = sigmoid(beta * x)
        return s + beta * x * s * (1 - s)

    assert_slope("Swish", f"swish_param {{ beta: {beta} }}", lambda x: x * sigmoid(beta * x), slope)


def test_clip():
    assert_slope(
        "Clip",
        "clip_param { min: -1.5 max: 2 }",
        lambda x: np.clip(x, -1.5, 2),
        lambda x: ((x >= -1.5) & (x <= 2)).astype(float),
    )


@pytest.mark.parametrize("parameters", ["", "threshold_param { threshold: 0.3 }"])
def test_threshold_equals_native(parameters):
    x = np.array([[-1, 0, 0.3, 0.31, np.inf, -np.inf, np.nan]], np.float32)
    found = []
    for ours in (False, True):
        net = load(inputs({"x": x.shape}) + layer("Threshold", parameters, ours=ours))
        net.blobs["x"].data[...] = x
        net.forward()
        found.append(net.blobs["y"].data.copy())
    assert np.array_equal(*found)


@pytest.mark.python_layers
@pytest.mark.parametrize(
    ("kind", "parameters", "shapes", "tops", "message"),
    [
        ("Concat", "concat_param { axis: 4 }", [X], 1, r"\[concat\] got axis 4"),
        ("Concat", "concat_param { axis: 1 concat_dim: 1 }", [X], 1, "got axis together with concat_dim"),
        ("Concat", "", [X, (3, 4, 5, 7)], 1, r"got shape \(3, 4, 5, 7\) of bottom 1"),
        ("Slice", "", [X], 3, "got 3 top blobs, expected a divisor of 4"),
        ("Slice", "slice_param { slice_point: 1 }", [X], 3, "got 1 values of slice_point, expected 2"),
        ("Slice", "slice_param { slice_point: 3 slice_point: 1 }", [X], 3, r"got slice_point \[3, 1\]"),
        ("Slice", "slice_param { slice_dim: 5 }", [X], 2, "got slice_dim 5"),
        ("Crop", "crop_param { offset: 4 }", [X, X], 1, r"\[crop\] got offset"),
        ("Crop", "crop_param { offset: 0 offset: 0 offset: 0 }", [X, X], 1, "got 3 values of offset"),
        ("Crop", "", [X, (3, 4)], 1, r"got shape \(3, 4\) of bottom 1"),
        ("Tile", "", [X], 1, r"\[tile\] got tiles"),
        ("Tile", "tile_param { axis: 7 tiles: 2 }", [X], 1, "got axis 7"),
        ("Reduction", "reduction_param { axis: 5 }", [X], 1, r"\[reduction\] got axis 5"),
        ("Clip", "clip_param { min: 3 max: 1 }", [X], 1, r"\[clip\] got clip_param"),
    ],
)
def test_errors_name_what_does_not_fit(kind, parameters, shapes, tops, message):
    names = [f"x{i}" for i in range(len(shapes))]
    text = layer(kind, parameters, ours=True, bottoms=names, tops=[f"y{i}" for i in range(tops)])
    with pytest.raises(Exception, match=message):
        load(inputs(dict(zip(names, shapes))) + text)
