"""Activation, Scale, Bias, PReLU and Eltwise layers against the native ones."""

from __future__ import annotations

import numpy as np
import pytest

caffe = pytest.importorskip("caffe")

from tests.caffe_layers.caffe_nets import close, compare, gradients, inputs, layer, load

SHAPES = [(2, 3, 5, 7), (1, 1), (13,), (3, 17, 1), (2, 5, 3, 4, 2)]
ACTIVATIONS = {
    "relu": ("ReLU", ""),
    "relu, slope": ("ReLU", "relu_param { negative_slope: 0.2 }"),
    "elu": ("ELU", ""),
    "elu, alpha": ("ELU", "elu_param { alpha: 0.3 }"),
    "sigmoid": ("Sigmoid", ""),
    "tanh": ("TanH", ""),
    "absval": ("AbsVal", ""),
    "bnll": ("BNLL", ""),
    "power": ("Power", ""),
    "power, linear": ("Power", "power_param { scale: 2.5 shift: -1 }"),
    "power 2": ("Power", "power_param { power: 2 scale: 0.5 shift: 1 }"),
    "power 3": ("Power", "power_param { power: 3 scale: 0.5 shift: 5 }"),
    "power -0.5": ("Power", "power_param { power: -0.5 scale: 0.1 shift: 3 }"),
    "power 0": ("Power", "power_param { power: 0 }"),
    "power, scale 0": ("Power", "power_param { power: 3 scale: 0 shift: 2 }"),
    "exp": ("Exp", ""),
    "exp, base": ("Exp", "exp_param { base: 2 scale: 0.5 shift: 1 }"),
    "exp, e": ("Exp", "exp_param { scale: -0.5 shift: 1 }"),
    "log": ("Log", "log_param { shift: 9 }"),
    "log, base": ("Log", "log_param { base: 2 scale: 0.5 shift: 4 }"),
}
IN_PLACE = ["relu", "relu, slope", "elu", "elu, alpha", "sigmoid", "tanh", "exp", "exp, base"]


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_activations_equal_native(name, shape):
    compare(*ACTIVATIONS[name], {"x": shape})


@pytest.mark.parametrize("name", IN_PLACE)
def test_activations_in_place_equal_native(name):
    compare(*ACTIVATIONS[name], {"x": (2, 3, 5, 7)}, tops=["x"])


@pytest.mark.parametrize("name", ["power", "power, linear", "power 2", "power 3", "log", "bnll"])
def test_in_place_gradients_equal_those_of_the_native_layer_with_a_top_of_its_own(name):
    """Caffe's layers differentiate wrongly in place and do not say so; ours keep what they need."""
    random = np.random.default_rng(2)
    x, dy = random.standard_normal((2, 2, 3, 5, 7)).astype(np.float32)
    text = inputs({"x": x.shape})
    native = load(text + layer(*ACTIVATIONS[name], ours=False) + "force_backward: true")
    ours = load(text + layer(*ACTIVATIONS[name], ours=True, tops=["x"]) + "force_backward: true")
    expected = gradients(native, {"x": x}, {"y": dy}, poison=False)
    got = gradients(ours, {"x": x}, {"x": dy})
    close(got["x data"], expected["y data"], "y")
    close(got["x diff"], expected["x diff"], "dx")


@pytest.mark.python_layers
def test_absval_in_place_is_refused():
    with pytest.raises(Exception, match="got a top that is its own bottom"):
        load(inputs({"x": (2, 3)}) + layer("AbsVal", ours=True, tops=["x"]))


@pytest.mark.parametrize("name", ["relu", "relu, slope", "elu", "absval", "sigmoid", "tanh", "bnll"])
def test_special_values_equal_native(name):
    """Gradients at 0 are a convention; large values must not overflow."""
    x = np.array([[0.0, -0.0, 1e-30, -1e-30, 30, -30, 80, -80]], np.float32)
    compare(*ACTIVATIONS[name], {"x": x.shape}, data={"x": x})


@pytest.mark.parametrize("name", ["relu", "relu, slope", "elu", "sigmoid", "tanh", "absval", "bnll"])
def test_nan_and_infinity_pass_as_in_caffe(name):
    x = np.array([[np.nan, np.inf, -np.inf, 1]], np.float32)
    results = []
    for ours in (False, True):
        net = load(inputs({"x": x.shape}) + layer(*ACTIVATIONS[name], ours=ours))
        net.blobs["x"].data[...] = x
        net.forward()
        results.append(net.blobs["y"].data.copy())
    np.testing.assert_allclose(results[1], results[0], rtol=1e-6)


@pytest.mark.python_layers
@pytest.mark.parametrize("parameters", ["exp_param { base: 0 }", "exp_param { base: -2 }"])
def test_impossible_bases_are_refused(parameters):
    with pytest.raises(Exception, match=r"\[exp\] got base"):
        load(inputs({"x": (2, 3)}) + layer("Exp", parameters, ours=True))


@pytest.mark.parametrize("tops", ["y", "x"])
@pytest.mark.parametrize("shared", ["false", "true"])
@pytest.mark.parametrize("shape", [(2, 3, 5, 7), (4, 11), (3, 2, 9)], ids=str)
def test_prelu_equals_native(shape, shared, tops):
    compare("PReLU", f"prelu_param {{ channel_shared: {shared} }}", {"x": shape}, tops=[tops])


def test_prelu_starts_with_a_quarter():
    net = load(inputs({"x": (2, 3, 4)}) + layer("PReLU", ours=True))
    assert (net.params["op"][0].data == 0.25).all()


X = (2, 3, 4, 5)
SCALES = {
    "plain": ("", {"x": X}),
    "axis 0": ("axis: 0", {"x": X}),
    "axis -2": ("axis: -2", {"x": X}),
    "two axes": ("axis: 1 num_axes: 2", {"x": X}),
    "to the end": ("axis: 2 num_axes: -1", {"x": X}),
    "all": ("axis: 0 num_axes: -1", {"x": X}),
    "scalar": ("num_axes: 0", {"x": X}),
    "one axis only": ("axis: 0", {"x": (7,)}),
    "matrix": ("", {"x": (5, 13)}),
    "two bottoms": ("", {"x": X, "g": (3,)}),
    "two bottoms, axes": ("axis: 0", {"x": X, "g": (2, 3)}),
    "two bottoms, all": ("axis: 0", {"x": X, "g": X}),
    "two bottoms, end": ("axis: -1", {"x": X, "g": (5,)}),
    "two bottoms, scalar": ("axis: 3", {"x": X, "g": ()}),
}


@pytest.mark.parametrize("tops", ["y", "x"])
@pytest.mark.parametrize("bias", ["false", "true"])
@pytest.mark.parametrize("name", SCALES)
def test_scale_equals_native(name, bias, tops):
    fields, shapes = SCALES[name]
    # Caffe overwrites the gradient of a vector that begins at axis 0: batches of one iteration do not add up.
    adds = name not in ("axis 0", "all", "one axis only")
    compare("Scale", f"scale_param {{ {fields} bias_term: {bias} }}", shapes, tops=[tops], adds=adds)


def test_scale_adds_to_the_gradient_whatever_its_axis():
    net = load(inputs({"x": (3, 5)}) + layer("Scale", "scale_param { axis: 0 }", ours=True) + "force_backward: true")
    x = np.arange(15, dtype=np.float32).reshape(3, 5)
    got = gradients(net, {"x": x}, {"y": np.ones_like(x)}, [np.full(3, 100, np.float32)])
    assert np.array_equal(got["blob 0 diff"], 100 + x.sum(1))


@pytest.mark.parametrize("tops", ["y", "x"])
@pytest.mark.parametrize("name", SCALES)
def test_bias_equals_native(name, tops):
    fields, shapes = SCALES[name]
    compare("Bias", f"bias_param {{ {fields} }}", shapes, tops=[tops])


def test_scale_starts_with_1_and_0():
    net = load(inputs({"x": X}) + layer("Scale", "scale_param { bias_term: true }", ours=True))
    assert (net.params["op"][0].data == 1).all()
    assert (net.params["op"][1].data == 0).all()


@pytest.mark.python_layers
@pytest.mark.parametrize(
    ("fields", "shapes", "message"),
    [
        ("axis: 4", {"x": X}, "axis 4"),
        ("axis: 2 num_axes: 3", {"x": X}, "num_axes 3"),
        ("num_axes: -2", {"x": X}, "num_axes -2"),
        ("axis: 1", {"x": X, "g": (4,)}, "shape"),
    ],
)
def test_wrong_axes_are_told(fields, shapes, message):
    with pytest.raises(Exception, match=rf"\[scale\] got {message}.*, expected"):
        load(inputs(shapes) + layer("Scale", f"scale_param {{ {fields} }}", ours=True, bottoms=list(shapes)))


ELTWISE = {
    "sum": ("", 2),
    "sum of three": ("eltwise_param { operation: SUM }", 3),
    "coefficients": ("eltwise_param { coeff: 0.5 coeff: -1 }", 2),
    "coefficients of three": ("eltwise_param { coeff: 1 coeff: 1e-3 coeff: 2.5 }", 3),
    "product": ("eltwise_param { operation: PROD }", 2),
    "product of four": ("eltwise_param { operation: PROD }", 4),
    "unstable product": ("eltwise_param { operation: PROD stable_prod_grad: false }", 3),
    "maximum": ("eltwise_param { operation: MAX }", 2),
    "maximum of four": ("eltwise_param { operation: MAX }", 4),
}


@pytest.mark.parametrize("name", ELTWISE)
@pytest.mark.parametrize("shape", [(2, 3, 5, 7), (1,), (11, 13)], ids=str)
def test_eltwise_equals_native(name, shape):
    parameters, count = ELTWISE[name]
    compare("Eltwise", parameters, {f"x{i}": shape for i in range(count)})


def test_eltwise_maximum_of_equal_values():
    random = np.random.default_rng(1)
    data = {f"x{i}": random.integers(0, 3, (4, 50)).astype(np.float32) for i in range(3)}
    compare("Eltwise", "eltwise_param { operation: MAX }", {name: (4, 50) for name in data}, data=data)


def test_eltwise_of_one_blob_with_itself():
    results = []
    for ours in (False, True):
        net = load(inputs({"x": (3, 4)}) + layer("Eltwise", ours=ours, bottoms=["x", "x"]) + "force_backward: true")
        x = np.arange(12, dtype=np.float32).reshape(3, 4)
        results.append(gradients(net, {"x": x}, {"y": x + 1}))
    for name, values in results[0].items():
        close(results[1][name], values, name)


def test_eltwise_gives_gradients_only_where_they_are_wanted():
    """One bottom comes from a convolution that learns, the other is data."""
    results = []
    for ours in (False, True):
        text = inputs({"x": (2, 3, 4, 5), "z": (2, 3, 4, 5)}) + (
            layer("Convolution", "convolution_param { num_output: 3 kernel_size: 1 }", ours=False, name="c", tops=["w"])
            + layer("Eltwise", ours=ours, bottoms=["z", "w"])
        )
        net = load(text)
        net.forward()
        net.blobs["z"].diff[...] = np.nan
        net.blobs["y"].diff[...] = 2
        net.backward()
        assert np.isnan(net.blobs["z"].diff).all()
        results.append(net.blobs["w"].diff.copy())
    close(results[1], results[0], "dw")


@pytest.mark.python_layers
def test_eltwise_refusals():
    text = inputs({"x": (2, 3), "z": (3, 2)})
    with pytest.raises(Exception, match=r"\[eltwise\] got shape \(3, 2\) of bottom 1"):
        load(text + layer("Eltwise", ours=True, bottoms=["x", "z"]))
    text = inputs({"x": (2, 3), "z": (2, 3)})
    with pytest.raises(Exception, match=r"\[eltwise\] got 1 values of coeff"):
        load(text + layer("Eltwise", "eltwise_param { coeff: 2 }", ours=True, bottoms=["x", "z"]))
    with pytest.raises(Exception, match=r"\[eltwise\] got coeff with PROD"):
        parameters = "eltwise_param { operation: PROD coeff: 2 coeff: 2 }"
        load(text + layer("Eltwise", parameters, ours=True, bottoms=["x", "z"]))
    with pytest.raises(Exception, match="got a top that is its own bottom"):
        load(text + layer("Eltwise", ours=True, bottoms=["x", "z"], tops=["x"]))


def test_in_place_chain_equals_native():
    """ResNet's chain on one blob: every layer keeps what it needs before the next one overwrites it."""
    random = np.random.default_rng(4)
    x = random.standard_normal((2, 5, 6, 7)).astype(np.float32)
    kinds = [
        ("Scale", "scale_param { bias_term: true }"),
        *((kind, "") for kind in ["PReLU", "Scale", "ELU", "Bias", "ReLU"]),
    ]
    results = []
    for ours in (False, True):
        text = inputs({"x": x.shape}) + "".join(
            layer(kind, parameters, ours=ours, name=f"op{i}", tops=["x"]) for i, (kind, parameters) in enumerate(kinds)
        )
        net = load(text + "force_backward: true")
        random = np.random.default_rng(5)
        for blobs in net.params.values():
            for blob in blobs:
                blob.data[...] = random.uniform(0.5, 1.5, blob.data.shape)
                blob.diff[...] = 0
        net.blobs["x"].data[...] = x
        net.forward()
        result = [net.blobs["x"].data.copy()]
        net.blobs["x"].diff[...] = random.standard_normal(x.shape)
        net.backward()
        result.append(net.blobs["x"].diff.copy())
        result += [blob.diff.copy() for blobs in net.params.values() for blob in blobs]
        results.append(result)
    assert len(results[0]) == len(results[1]) == 7
    for native, our in zip(*results):
        close(our, native, "chain")
