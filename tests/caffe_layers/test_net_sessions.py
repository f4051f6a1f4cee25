"""Nets that run without Caffe against Caffe itself: nets in the styles of the field, and files."""

from __future__ import annotations

import numpy as np
import pytest

caffe = pytest.importorskip("caffe", reason="Caffe is not installed for this Python")

import clgraft
from clgraft.caffe_layers.nets.weights import LayerWeights, read_caffemodel, write_caffemodel
from clgraft.caffe_layers.prototxt import schema
from tests.caffe_layers.net_styles import STYLES, small

ROUNDING = 1e-4  # of the largest value of a blob
SHOWN = 3  # blobs inside of a net that are compared: each is a graph of its own


def for_predictions(text: str) -> str:
    """Return a net without its losses, as text."""
    net = schema.parse("NetParameter", text)
    for place in reversed(range(len(net.layer))):
        if net.layer[place].type.endswith("Loss"):
            del net.layer[place]
    return str(net)


def filled(net) -> None:
    """Fill statistics, scales and shifts so that they change the results."""
    rng = np.random.default_rng(6)
    for name, blobs in net.params.items():
        kind = net.layers[list(net._layer_names).index(name)].type
        for place, blob in enumerate(blobs):
            if kind == "BatchNorm":
                blob.data[...] = 2.0 if place == 2 else rng.uniform(0.5, 1.5, blob.data.shape) * 2
            elif kind == "Scale" or (place and not blob.data.any()):
                blob.data[...] = rng.uniform(0.5, 1.5, blob.data.shape)


@pytest.mark.parametrize("style", STYLES)
def test_outputs_and_blobs_of_a_net(style, tmp_path) -> None:
    path, weights = tmp_path / "deploy.prototxt", tmp_path / "net.caffemodel"
    path.write_text(for_predictions(small(style)))
    net = caffe.Net(str(path), caffe.TEST)
    filled(net)
    rng = np.random.default_rng(7)
    given = {name: rng.standard_normal(net.blobs[name].data.shape).astype("f4") for name in net.inputs}
    for name, array in given.items():
        net.blobs[name].data[...] = array
    net.forward()
    net.save(str(weights))
    session = clgraft.load(path, weights)
    assert {port.name: port.usual for port in session.inputs} == {name: array.shape for name, array in given.items()}
    assert [port.name for port in session.outputs] == list(net.outputs)
    found = session.run(given)
    inner = [name for name in net.blobs if "_split_" not in name]  # those are Caffe's own copies
    for name in {*net.outputs, *inner[:: max(1, len(inner) // SHOWN)]}:
        expected = net.blobs[name].data
        value = found[name] if name in found else session.values(name)
        assert value.shape == expected.shape, name
        assert np.abs(value - expected).max() <= ROUNDING * max(1e-3, np.abs(expected).max()), name


def test_weights_go_both_ways(tmp_path) -> None:
    text = """
        layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 dim: 3 dim: 5 dim: 5 } } }
        layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
                convolution_param { num_output: 2 kernel_size: 3 weight_filler { type: "xavier" } } }
    """
    path = tmp_path / "net.prototxt"
    path.write_text(text)
    net = caffe.Net(str(path), caffe.TEST)
    net.save(str(tmp_path / "a.caffemodel"))
    layers = read_caffemodel(tmp_path / "a.caffemodel")
    (conv,) = [layer for layer in layers if layer.blobs]
    assert conv.name == "conv" and conv.type == "Convolution"
    for blob, array in zip(net.params["conv"], conv.blobs):
        assert np.array_equal(blob.data, array) and blob.data.shape == array.shape
    changed = [LayerWeights("conv", "Convolution", tuple(array + 1 for array in conv.blobs))]
    write_caffemodel(tmp_path / "b.caffemodel", changed)
    net.copy_from(str(tmp_path / "b.caffemodel"))
    for blob, array in zip(net.params["conv"], changed[0].blobs):
        assert np.array_equal(blob.data, array)


@pytest.mark.parametrize("options", [{}, {"regions": True}], ids=["layers", "regions"])
def test_swapped_nets_run_as_well(options, tmp_path) -> None:
    from clgraft.caffe_layers.swap import swap_net

    text = for_predictions(small("resnet50"))
    (tmp_path / "a.prototxt").write_text(text)
    (tmp_path / "b.prototxt").write_text(swap_net(text, **options)[0])
    net = caffe.Net(str(tmp_path / "a.prototxt"), caffe.TEST)
    filled(net)
    net.save(str(tmp_path / "net.caffemodel"))
    rng = np.random.default_rng(7)
    given = {name: rng.standard_normal(net.blobs[name].data.shape).astype("f4") for name in net.inputs}
    weights = tmp_path / "net.caffemodel"
    first, second = (clgraft.load(tmp_path / f"{name}.prototxt", weights).run(given) for name in "ab")
    assert list(first) == list(second)
    for name, array in first.items():
        assert np.array_equal(array, second[name]), name
