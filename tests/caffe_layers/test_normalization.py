"""Local response normalisation and MVN against the native layers."""

from __future__ import annotations

import numpy as np
import pytest

from clgraft.caffe_layers.swap import swap_net

caffe = pytest.importorskip("caffe")

from tests.caffe_layers.caffe_nets import compare, inputs, layer, load


@pytest.mark.parametrize("region", ["ACROSS_CHANNELS", "WITHIN_CHANNEL"])
@pytest.mark.parametrize(
    "shape, fields",
    [
        ((2, 7, 5, 6), ""),
        ((2, 96, 6, 7), "local_size: 5 alpha: 0.0001 beta: 0.75"),
        ((1, 3, 9, 8), "local_size: 5 alpha: 0.5 beta: 0.75 k: 2"),
        ((2, 8, 7, 7), "local_size: 3 alpha: 0.3 beta: 0.6 engine: CAFFE"),
        ((2, 4, 1, 1), "local_size: 1 alpha: 2 beta: 1"),
    ],
    ids=str,
)
def test_lrn_equals_native(shape, fields, region):
    compare("LRN", f"lrn_param {{ norm_region: {region} {fields} }}", {"x": shape})


@pytest.mark.parametrize("across", ["true", "false"])
@pytest.mark.parametrize("variance", ["true", "false"])
@pytest.mark.parametrize("eps", ["", "eps: 0.01"])
def test_mvn_equals_native(eps, variance, across):
    fields = f"mvn_param {{ across_channels: {across} normalize_variance: {variance} {eps} }}"
    compare("MVN", fields, {"x": (2, 3, 11, 13)})


def test_shapes_may_change():
    net = load(inputs({"x": (2, 5, 4, 4)}) + layer("LRN", "lrn_param { norm_region: WITHIN_CHANNEL }", ours=True))
    for shape in ((1, 3, 9, 5), (4, 2, 6, 6)):
        net.blobs["x"].reshape(*shape)
        net.reshape()
        net.blobs["x"].data[...] = 1
        net.forward()
        y = net.blobs["y"].data
        assert y.shape == shape and np.isclose(y[0, 0, 2, 2], 2**-0.75)


@pytest.mark.python_layers
@pytest.mark.parametrize(
    ("kind", "fields", "shape", "words"),
    [
        ("LRN", "lrn_param { local_size: 4 }", (1, 3, 4, 4), "local_size 4, expected an odd number"),
        ("LRN", "", (3, 4), "expected 4 axes"),
        ("MVN", "", (3,), "at least 2 axes"),
    ],
)
def test_what_is_refused(kind, fields, shape, words):
    with pytest.raises(Exception, match=words):
        load(inputs({"x": shape}) + layer(kind, fields, ours=True))


def test_swap():
    text = inputs({"x": (2, 6, 9, 9)}) + layer("LRN", "lrn_param { local_size: 3 }", ours=False)
    swapped, report = swap_net(text)
    assert [(row.name, row.became) for row in report.swapped] == [("op", "OclLRN")]
    load(swapped).forward()
