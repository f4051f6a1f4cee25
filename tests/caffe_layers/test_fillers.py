"""Initial weights: under one random seed ours are the native layer's, to the bit."""

from __future__ import annotations

import numpy as np
import pytest

caffe = pytest.importorskip("caffe")

from tests.caffe_layers.caffe_nets import inputs, layer, load

FILLERS = [
    "",
    "value: 2.5",
    'type: "constant" value: -1',
    'type: "uniform" min: -2 max: 5',
    'type: "gaussian" mean: 1 std: 3',
    'type: "gaussian" std: 1 sparse: 2',
    'type: "positive_unitball"',
    'type: "xavier"',
    'type: "xavier" variance_norm: FAN_OUT',
    'type: "msra"',
    'type: "msra" variance_norm: AVERAGE',
    'type: "bilinear"',
]


@pytest.mark.parametrize("filler", FILLERS)
def test_fillers_equal_native(filler):
    parameters = (
        f"convolution_param {{ num_output: 3 kernel_size: 3 weight_filler {{ {filler} }} "
        'bias_filler { type: "uniform" min: 3 max: 4 } }'
    )
    weights = []
    for ours in (False, True):
        caffe.set_random_seed(11)
        text = inputs({"x": (2, 4, 5, 5)}) + layer("Convolution", parameters, ours=ours)
        net = load(text + layer("Convolution", parameters, ours=ours, name="next", bottoms=["y"], tops=["z"]))
        weights += [[blob.data.copy() for name in ("op", "next") for blob in net.params[name]]]
    for native, our in zip(*weights):
        assert np.array_equal(native, our)


@pytest.mark.python_layers
def test_an_unknown_filler_is_refused_before_caffe_aborts():
    parameters = 'convolution_param { num_output: 3 kernel_size: 3 weight_filler { type: "nonsense" } }'
    with pytest.raises(Exception, match=r"\[filler\] got type 'nonsense', expected"):
        load(inputs({"x": (2, 4, 5, 5)}) + layer("Convolution", parameters, ours=True))
