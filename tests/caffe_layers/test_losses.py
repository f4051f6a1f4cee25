"""Softmax and the losses against the native layers."""

from __future__ import annotations

import numpy as np
import pytest

from clgraft.caffe_layers.swap import swap_back, swap_file, swap_net

caffe = pytest.importorskip("caffe")

from tests.caffe_layers.caffe_nets import TEST, close, compare, inputs, layer, load


@pytest.mark.parametrize(
    "shape, fields",
    [
        ((6, 10), ""),
        ((2, 5, 3, 7), ""),
        ((2, 21, 9, 16), "softmax_param { engine: CAFFE }"),
        ((2, 3, 4, 5), "softmax_param { axis: -1 }"),
        ((3, 4, 5), "softmax_param { axis: 0 }"),
        ((7,), "softmax_param { axis: 0 }"),
    ],
    ids=str,
)
@pytest.mark.parametrize("tops", ["y", "x"], ids=["apart", "in place"])
def test_softmax_equals_native(shape, fields, tops):
    compare("Softmax", fields, {"x": shape}, tops=tops)


def losses(kind, fields, data, *, tops="y", frame="", forced=True):
    """Run a native loss and its swap; return the tops' data and the bottoms' gradients of both."""
    text = inputs({name: values.shape for name, values in data.items()})
    # a branch that learns decides where gradients are wanted, as in a net
    text += 'layer { name: "scale" type: "Power" bottom: "x" top: "z" power_param { scale: 1 } }\n'
    text += layer(kind, fields, ours=False, bottoms=("z", *list(data)[1:]), tops=tops, frame=frame)
    text += "force_backward: true\n" if forced else ""
    swapped, report = swap_net(text, names="op")
    assert [row.became for row in report.swapped] == ["Ocl" + kind] and swap_back(swapped)[0] == text
    found = []
    for source in (text, swapped):
        net = load(source)
        for name, values in data.items():
            net.blobs[name].data[...] = values
        for blob in net.blobs.values():
            blob.diff[...] = 0 if source is text else np.nan  # with BLAS, 0 * NaN in what is overwritten is NaN
        for top in tops:  # the loss weights stand where they were put
            net.blobs[top].diff[...] = 0
        for number, top in enumerate(tops):
            weights = [float(word) for word in frame.replace("loss_weight:", "").split()] or [1.0, 0.0]
            net.blobs[top].diff[...] = weights[number]
        net.forward()
        net.backward()
        results = {top: net.blobs[top].data.copy() for top in tops}
        results["x diff"] = net.blobs["z"].diff.copy()
        found.append(results)
    native, ours = found
    for name, values in native.items():
        close(ours[name], values, name)
    return ours


def labelled(shape, classes, seed=0, label=None):
    rng = np.random.default_rng(seed)
    x = 2 * rng.standard_normal(shape).astype(np.float32)
    places = label or (shape[0], *shape[2:])
    return {"x": x, "label": rng.integers(0, classes, places).astype(np.float32)}


MODES = ["", "normalization: FULL", "normalization: VALID", "normalization: BATCH_SIZE", "normalization: NONE"]
LEGACY = ["normalize: true", "normalize: false", "normalize: false normalization: FULL"]


@pytest.mark.parametrize("mode", MODES + LEGACY)
@pytest.mark.parametrize("ignore", ["", "ignore_label: 2"])
def test_softmax_loss_equals_native(ignore, mode):
    fields = f"loss_param {{ {ignore} {mode} }}"
    losses("SoftmaxWithLoss", fields, labelled((3, 5, 4, 6), 5))
    losses("SoftmaxWithLoss", fields, labelled((7, 9), 5))


@pytest.mark.parametrize("weight", [1.0, 0.0, 2.5])
def test_loss_weight(weight):
    losses("SoftmaxWithLoss", "", labelled((3, 5, 4, 6), 5), frame=f"loss_weight: {weight}")


def test_probabilities():
    """With two tops some native versions end the process: here both are compared with native layers of one top."""
    data = labelled((3, 5, 4, 6), 5)
    expected = losses("SoftmaxWithLoss", "", data)
    head = inputs({name: values.shape for name, values in data.items()})
    text = head + layer("SoftmaxWithLoss", "", ours=False, bottoms=("x", "label"), tops="yp")
    text += "force_backward: true\n"
    net = load(swap_net(text)[0] + layer("Softmax", "", ours=False, name="q", tops="q"))
    for name, values in data.items():
        net.blobs[name].data[...] = values
    net.forward()
    net.blobs["q"].diff[...] = 0
    net.backward()
    close(net.blobs["y"].data, expected["y"], "loss")
    close(net.blobs["p"].data, net.blobs["q"].data, "probabilities")


def test_softmax_loss_along_another_axis():
    data = labelled((3, 4, 6), 6, label=(3, 4))
    losses("SoftmaxWithLoss", "loss_param { ignore_label: 255 } softmax_param { axis: 2 }", data)


def test_nothing_counts():
    data = labelled((3, 5), 1)
    found = losses("SoftmaxWithLoss", "loss_param { ignore_label: 0 normalization: VALID }", data)
    assert found["y"] == 0 and not found["x diff"].any()


@pytest.mark.python_layers
def test_labels_that_name_no_class_are_an_error():
    text = inputs({"x": (2, 3), "label": (2,)}) + layer("SoftmaxWithLoss", "", ours=True, bottoms=("x", "label"))
    net = load(text)
    for value in (3, -1, 255, np.nan):
        net.blobs["label"].data[...] = (0, value)
        with pytest.raises(Exception, match=r"\[softmax_loss\] got 1 labels outside .* expected 0 to 2"):
            net.forward()
    net.blobs["label"].data[...] = (0, 2)
    net.forward()
    assert net.blobs["y"].data > 0


def test_improbable_labels_count_as_in_caffe():
    data = {"x": np.array([[500, 0, 0], [0, 0, 0]], np.float32), "label": np.array([1, 2], np.float32)}
    assert losses("SoftmaxWithLoss", "", data)["y"] > 40


@pytest.mark.parametrize("mode", MODES + LEGACY)
@pytest.mark.parametrize("ignore", ["", "ignore_label: 1"])
def test_sigmoid_cross_entropy_equals_native(ignore, mode):
    rng = np.random.default_rng(1)
    x = 20 * rng.standard_normal((4, 3, 5)).astype(np.float32)
    for targets in (rng.integers(0, 3, x.shape), rng.random(x.shape)):
        data = {"x": x, "t": targets.astype(np.float32)}
        losses("SigmoidCrossEntropyLoss", f"loss_param {{ {ignore} {mode} }}", data)


def test_euclidean_loss_equals_native():
    rng = np.random.default_rng(2)
    data = {name: rng.standard_normal((4, 3, 5)).astype(np.float32) for name in ("x", "t")}
    losses("EuclideanLoss", "", data)
    losses("EuclideanLoss", "", {**data, "t": data["t"].reshape(4, 15)}, frame="loss_weight: 0.25")
    found = []
    for ours in (False, True):
        net = load(
            inputs({"x": (4, 6), "t": (4, 6)})
            + layer("EuclideanLoss", "", ours=ours, bottoms=("x", "t"), frame="loss_weight: 3")
            + "force_backward: true"
        )
        for name in ("x", "t"):
            net.blobs[name].data[...] = data[name].reshape(4, 15)[:, :6]
        net.forward()
        net.backward()
        found.append([net.blobs[name].diff.copy() for name in ("x", "t")])
    for got, expected, name in zip(found[1], found[0], "xt"):
        close(got, expected, f"{name} diff")


@pytest.mark.python_layers
def test_a_gradient_of_labels_is_refused_as_in_caffe():
    text = inputs({"x": (2, 3), "raw": (2,)})
    text += 'layer { name: "learned" type: "Scale" bottom: "raw" top: "label" scale_param { axis: 0 num_axes: 0 } }\n'
    text += layer("SoftmaxWithLoss", "", ours=True, bottoms=("x", "label"), frame="loss_weight: 1")
    net = load(text)
    net.forward()
    with pytest.raises(Exception, match="labels have no gradient"):
        net.backward()


LOSS = """\
layer {
  name: "loss"  # the end
  type: "SoftmaxWithLoss"
  bottom: "z"
  bottom: "label"
  top: "loss"
  loss_param {
    ignore_label: 255
  }
  # between
  softmax_param { axis: 1 }
}
"""


@pytest.mark.parametrize(
    "text",
    [
        LOSS,
        LOSS.replace('  top: "loss"\n', ""),
        LOSS.replace('  top: "loss"\n', '  top: "loss"\n  top: "p"\n'),
        LOSS.replace("  loss_param", "  loss_weight: 0.5\n  loss_param"),
        LOSS.replace("\n", "\r\n"),
        'layer { name: "loss" type: "SoftmaxWithLoss" bottom: "z" bottom: "label" }\n',
        'layer { name: "z" type: "EuclideanLoss" bottom: "z" bottom: "label" include { phase: TRAIN } }\n',
    ],
)
def test_swap_says_what_a_native_loss_has_by_itself_and_takes_it_back(text):
    head = inputs({"z": (2, 3), "label": (2,)})
    head = head.replace("dim: 2 }", "dim: 2 dim: 3 }") if "Euclidean" in text else head
    swapped, report = swap_net(head + text)
    assert len(report.swapped) == 1
    assert swapped.count("loss_weight:") == max(1, text.count("top:")) and "top:" in swapped[len(head) :]
    assert swap_back(swapped)[0] == head + text
    net = load(swapped)
    tops = [name for name in net.outputs if name not in ("z", "label")]
    assert len(tops) == max(1, text.count("top:"))


def test_swap_of_a_net_inside_of_a_solver(tmp_path):
    net = 'layer { name: "loss" type: "SoftmaxWithLoss" bottom: "z" bottom: "label" }'
    other = 'layer { name: "early" type: "Split" bottom: "z" top: "loss" } force_backward: true'
    text = f"train_net_param {{ {net} {other} }} base_lr: 0.1"
    (tmp_path / "solver.prototxt").write_text(text)
    swap_file(tmp_path / "solver.prototxt", tmp_path / "swapped.prototxt")
    swapped = (tmp_path / "swapped.prototxt").read_text()
    assert 'top: "loss_loss" loss_weight: 1' in swapped and "clgraft force_backward" in swapped


def test_swap_keeps_parameters_that_stand_apart():
    text = LOSS.replace("  # between\n", "  propagate_down: true propagate_down: false\n")
    swapped, report = swap_net(text)
    assert swapped == text and "stand apart" in report.left[0].reason


def test_an_old_net_trains_as_in_caffe():
    """V1, whose loss has no top."""
    old = """
    input: "x" input_dim: 4 input_dim: 3 input_dim: 1 input_dim: 1
    input: "label" input_dim: 4 input_dim: 1 input_dim: 1 input_dim: 1
    layers { name: "ip" type: INNER_PRODUCT bottom: "x" top: "ip" inner_product_param { num_output: 5
        weight_filler { type: "constant" value: 0.1 } } }
    layers { name: "loss" type: SOFTMAX_LOSS bottom: "ip" bottom: "label" }
    """
    swapped, report = swap_net(old, types=["SoftmaxWithLoss"])
    assert [row.became for row in report.swapped] == ["OclSoftmaxWithLoss"]
    found = []
    for text in (old, swapped):
        net = load(text)
        net.blobs["x"].data[...] = np.random.default_rng(0).standard_normal((4, 3, 1, 1))
        net.blobs["label"].data[...] = np.arange(4).reshape(4, 1, 1, 1)
        net.forward()
        net.backward()
        found.append(net.params["ip"][0].diff.copy())
    assert np.abs(found[0]).max() > 0.01
    close(found[1], found[0], "gradient of the weights")


@pytest.mark.python_layers
@pytest.mark.parametrize(
    ("kind", "fields", "shapes", "words"),
    [
        ("Softmax", "softmax_param { axis: 2 }", {"x": (2, 3)}, "axis 2"),
        ("SoftmaxWithLoss", "", {"x": (2, 3, 4), "label": (2,)}, "2 labels of shape"),
        ("SigmoidCrossEntropyLoss", "", {"x": (2, 3), "t": (2,)}, "2 targets"),
        ("EuclideanLoss", "", {"x": (2, 3), "t": (3, 2)}, "shape \\(3, 2\\) of bottom 1"),
        ("EuclideanLoss", "", {"x": (2, 3)}, "1 bottom blobs"),
    ],
)
def test_what_is_refused(kind, fields, shapes, words):
    with pytest.raises(Exception, match=words):
        load(inputs(shapes) + layer(kind, fields, ours=True, bottoms=list(shapes)), TEST)
