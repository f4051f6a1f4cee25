"""Gradients of random small nets, for data and every blob: chains that work in place do not disturb each other."""

from __future__ import annotations

import re

import numpy as np
import pytest

caffe = pytest.importorskip("caffe")

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from clgraft.caffe_layers.swap import swap_net
from tests.caffe_layers.caffe_nets import TEST, load
from tests.caffe_layers.test_random_nets import Growing

LAYER = re.compile(r'type: "(\w+)" bottom: "(\w+)" .*?top: "(\w+)"')


class Chained(Growing):
    """A net in which layers that work in place often follow pooling."""

    def pooling(self) -> str:
        top = super().pooling()
        if self.draw(st.booleans()):
            self.add(self.draw(st.sampled_from(["TanH", "Scale", "PReLU"])), bottoms=(top,), tops=(top,))
        return top


@st.composite
def nets(draw) -> tuple:
    """Return a net's text, its last blob and that blob's shape."""
    net = Chained(draw)
    for _ in range(draw(st.integers(1, 7))):
        net.grow()
    return net.text, net.blob, tuple(net.shape)


def wrong_in_caffe(text: str) -> bool:
    """Return whether a native gradient reads what a layer in place has overwritten: ours reads what it kept."""
    maker = ""
    for kind, bottom, top in LAYER.findall(text):
        in_place = bottom == top
        if in_place and (kind in ("Power", "BNLL") or maker == "LRN"):
            return True
        maker = maker if in_place and kind == "Dropout" else kind  # OclDropout passes everything on in this phase
    return False


def agree(got: np.ndarray, expected: np.ndarray, name: str, dy: np.ndarray) -> None:
    """Compare; where a tanh saturates, 1 - y^2 keeps few digits of y, so part of dy is allowed as error."""
    assert np.isfinite(got).all() and got.shape == expected.shape, name
    error, size = np.abs(got - expected).max(initial=0), np.abs(expected).max(initial=0)
    assert error <= 1e-4 * size + 1e-5 * np.abs(dy).max(), f"{name}: off by {error}, of {size}"


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(nets(), st.integers(0, 2**31))
def test_random_nets_have_the_same_gradients(net, seed):
    text, last, shape = net
    assume(not wrong_in_caffe(text))
    text += "force_backward: true"
    native, ours = load(text, TEST), load(swap_net(text)[0], TEST)
    random = np.random.default_rng(seed)
    data = random.standard_normal(native.blobs["data"].data.shape)
    dy = random.standard_normal(shape)
    for name, blobs in native.params.items():
        for index, blob in enumerate(blobs):
            low = 0.5 if name.startswith("batchnorm") and index else -1
            blob.data[...] = random.uniform(low, 1, blob.data.shape)
            ours.params[name][index].data[...] = blob.data
    for one in (native, ours):
        one.blobs["data"].data[...] = data
        one.forward()
        for blobs in one.params.values():
            for blob in blobs:
                blob.diff[...] = 0
        for name, blob in one.blobs.items():
            blob.diff[...] = 0 if one is native else np.nan
            if name in one.outputs:
                blob.diff[...] = dy if name == last else 0
        one.backward()
    agree(ours.blobs["data"].diff, native.blobs["data"].diff, "data", dy)
    for name, blobs in native.params.items():
        if name.startswith("batchnorm"):
            continue  # no gradients
        for index, blob in enumerate(blobs):
            agree(ours.params[name][index].diff, blob.diff, f"{name} {index}", dy)
