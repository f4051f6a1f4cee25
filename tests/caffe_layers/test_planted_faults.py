"""Faults planted on purpose: the comparison with native layers has to notice each of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

caffe = pytest.importorskip("caffe")

from clgraft import core
from clgraft.caffe_layers.layers import (
    activation,
    batch_norm,
    built,
    convolution,
    loss,
    lrn,
)
from clgraft.core.nn import convolution as convolutions
from clgraft.core.nn import elementwise, reductions, shapes
from clgraft.core.nn.element_functions import LEFT
from tests.caffe_layers.caffe_nets import TEST, compare

SHAPE = (3, 4, 5, 6)
CONVOLUTION = "convolution_param { num_output: 4 kernel_size: 3 stride: 2 }"
TIES = {f"x{i}": np.random.default_rng(i).integers(0, 3, SHAPE).astype(np.float32) for i in range(2)}
KINKS = {"x": np.array([[-1.0, 0.0, 1.0]], np.float32)}


def writes_nothing(self, *blobs):
    return None


def overwrites(self, found, places=built.BuiltLayer._places):
    return {name: (*place[:-1], core.OVERWRITE) for name, place in places(self, found).items()}


def shifted_pad(build, *values, function=convolutions.convolution, **given):
    return function(build, *values, **{**given, "pad": (1, 0), "pad_end": (0, 0)})


def first_bottom_only(self, top, propagate_down, bottom, differentiate=convolution.OclConvolution.differentiate):
    differentiate(self, top, (propagate_down[0], False), bottom)


def without_factor(self, begin=batch_norm.OclBatchNorm.begin):
    factor = self.blobs[2].data[0]
    self.blobs[2].data[0] = 1
    begin(self)
    self.blobs[2].data[0] = factor


def from_what_stands_there(self, top, propagate_down, bottom, differentiate=activation.OclPReLU.differentiate):
    self._saves = False
    differentiate(self, top, propagate_down, bottom)
    self._saves = True


def crossed_parts(build, x, axis, extents, split=shapes.split):
    return split(build, x, axis, extents)[::-1]


FAULTS = {
    "a loss weight of 1 whatever it is": (
        loss.Loss,
        "weight",
        lambda self, top: 1.0,
        ("EuclideanLoss", "", {"x": SHAPE, "t": SHAPE}),
        {"frame": "loss_weight: 3"},
    ),
    "windows of another size": (
        lrn.OclLRN,
        "size",
        property(lambda self: 3, lambda self, size: None),
        ("LRN", "lrn_param { alpha: 1 }", {"x": (2, 7, 3, 3)}),
        {},
    ),
    "a forward that writes nothing": (activation.Activation, "compute", writes_nothing, ("TanH", "", {"x": SHAPE}), {}),
    "a backward that writes nothing": (
        activation.Activation,
        "differentiate",
        writes_nothing,
        ("TanH", "", {"x": SHAPE}),
        {},
    ),
    "a gradient that is off by a thousandth": (
        activation.OclSigmoid,
        "function",
        lambda self, make=activation.OclSigmoid.function: replace(make(self), ways={LEFT: "1.001 * dy * y * (1 - y)"}),
        ("Sigmoid", "", {"x": SHAPE}),
        {},
    ),
    "another slope at the kink": (
        activation.OclReLU,
        "function",
        lambda self, make=activation.OclReLU.function: replace(make(self), ways={LEFT: "dy * (x >= 0 ? 1 : slope)"}),
        ("ReLU", "", {"x": (1, 3)}),
        {"data": KINKS},
    ),
    "the other bottom at a tie": (
        elementwise,
        "maximum",
        lambda count, ties, make=elementwise.maximum: replace(
            make(count, ties), before="real top1 = fmax(x0, x1); real who1 = x0 >= x1 ? 0 : 1; "
        ),
        ("Eltwise", "eltwise_param { operation: MAX }", dict.fromkeys(TIES, SHAPE)),
        {"data": TIES},
    ),
    "a factor's gradient that is overwritten": (
        built.BuiltLayer,
        "_places",
        overwrites,
        ("Scale", "scale_param { bias_term: true }", {"x": SHAPE}),
        {},
    ),
    "a filter's gradient that is overwritten": (
        built.BuiltLayer,
        "_places",
        overwrites,
        ("Convolution", CONVOLUTION, {"x": SHAPE}),
        {},
    ),
    "a deconvolution's gradient that is overwritten": (
        built.BuiltLayer,
        "_places",
        overwrites,
        ("Deconvolution", CONVOLUTION, {"x": SHAPE}),
        {},
    ),
    "a dense layer's gradient that is overwritten": (
        built.BuiltLayer,
        "_places",
        overwrites,
        ("InnerProduct", "inner_product_param { num_output: 3 }", {"x": SHAPE}),
        {},
    ),
    "the second bottom forgotten": (
        convolution.OclConvolution,
        "differentiate",
        first_bottom_only,
        ("Convolution", CONVOLUTION, {"x": SHAPE, "z": SHAPE}),
        {"tops": ("y", "v")},
    ),
    "an input that is one pixel off": (
        convolutions,
        "convolution",
        shifted_pad,
        ("Convolution", CONVOLUTION, {"x": SHAPE}),
        {},
    ),
    "parts in another order": (
        shapes,
        "split",
        crossed_parts,
        ("Slice", "", {"x": SHAPE}),
        {"tops": ("y", "z")},
    ),
    "a fold that forgets its coefficient": (
        reductions,
        "VALUES",
        {**reductions.VALUES, "sum": ("x0", "1 / factor")},
        ("Reduction", "reduction_param { coeff: 2 }", {"x": SHAPE}),
        {},
    ),
    "statistics without their factor": (
        batch_norm.OclBatchNorm,
        "begin",
        without_factor,
        ("BatchNorm", "", {"x": SHAPE}),
        {"phase": TEST, "blobs": [np.full(4, 6, np.float32), np.full(4, 9, np.float32), np.full(1, 3, np.float32)]},
    ),
    "an input that was overwritten in place": (
        activation.OclPReLU,
        "differentiate",
        from_what_stands_there,
        ("PReLU", "", {"x": SHAPE}),
        {"tops": ["x"]},
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_noticed(name, monkeypatch):
    owner, attribute, fault, case, options = FAULTS[name]
    compare(*case, **options)
    monkeypatch.setattr(owner, attribute, fault, raising=False)
    with pytest.raises(AssertionError):
        compare(*case, **options)
