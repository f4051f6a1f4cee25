"""Batch norm layers against float64 numpy, and against the native layer where that one computes statistics at all."""

from __future__ import annotations

import numpy as np
import pytest

caffe = pytest.importorskip("caffe")

from tests.caffe_layers.caffe_nets import TEST, TRAIN, close, compare, gradients, inputs, layer, load, native_learns

SHAPES = [(4, 3, 5, 7), (5, 1, 3), (8, 17), (13,), (2, 3, 4, 2, 3), (1, 2, 9, 11)]
NATIVE_SHAPES = [shape for shape in SHAPES if len(shape) > 1]  # one axis is fatal to the native layer
FRAME = "param { lr_mult: 0 decay_mult: 0 } " * 3


needs_native = pytest.mark.skipif(not native_learns(), reason="this Caffe's own BatchNorm computes no statistics")


def channels_of(shape: tuple) -> int:
    return 1 if len(shape) == 1 else shape[1]


def folded(x: np.ndarray) -> np.ndarray:
    """See values as (batch, channels, pixels) in float64."""
    return np.asarray(x, np.float64).reshape(x.shape[0], channels_of(x.shape), -1)


def statistics_blobs(shape: tuple, seed: int = 0) -> list:
    """Return statistics as they are after some training."""
    random = np.random.default_rng(seed)
    channels = channels_of(shape)
    mean, var = random.standard_normal(channels), random.uniform(0.5, 3, channels)
    return [values.astype(np.float32) for values in (7 * mean, 7 * var, np.array([7.0]))]


@pytest.mark.parametrize("tops", ["y", "x"])
@pytest.mark.parametrize("shape", NATIVE_SHAPES, ids=str)
@pytest.mark.parametrize(("phase", "fields"), [(TEST, ""), (TRAIN, "use_global_stats: true"), (TEST, "eps: 0.01")])
def test_global_statistics_equal_native(shape, tops, phase, fields):
    parameters = f"batch_norm_param {{ {fields} }}" if fields else ""
    blobs = statistics_blobs(shape)
    compare("BatchNorm", parameters, {"x": shape}, tops=[tops], phase=phase, frame=FRAME, blobs=blobs)


def test_without_statistics_the_factor_is_zero():
    shape = (2, 3, 4)
    blobs = [np.zeros(3, np.float32), np.zeros(3, np.float32), np.zeros(1, np.float32)]
    compare("BatchNorm", "", {"x": shape}, phase=TEST, frame=FRAME, blobs=blobs)


@needs_native
@pytest.mark.parametrize("tops", ["y", "x"])
@pytest.mark.parametrize("shape", NATIVE_SHAPES, ids=str)
@pytest.mark.parametrize(
    ("phase", "fields"), [(TRAIN, ""), (TEST, "use_global_stats: false moving_average_fraction: 0.7 eps: 0.1")]
)
def test_batch_statistics_equal_native(shape, tops, phase, fields):
    parameters = f"batch_norm_param {{ {fields} }}" if fields else ""
    blobs = statistics_blobs(shape)
    compare("BatchNorm", parameters, {"x": shape}, tops=[tops], phase=phase, frame=FRAME, blobs=blobs, tolerance=5e-5)


@pytest.mark.parametrize("top", ["y", "x"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_batch_statistics_equal_numpy(shape, top):
    fraction, eps = 0.9, 1e-3
    parameters = f"batch_norm_param {{ moving_average_fraction: {fraction} eps: {eps} }}"
    net = load(
        inputs({"x": shape})
        + layer("BatchNorm", parameters, ours=True, tops=[top], frame=FRAME)
        + "force_backward: true"
    )
    assert [blob.data.shape for blob in net.params["op"]] == [(channels_of(shape),)] * 2 + [(1,)]
    assert not any(blob.data.any() for blob in net.params["op"])
    random = np.random.default_rng(3)
    running = [np.zeros((1, channels_of(shape), 1))] * 2 + [0.0]
    for _ in range(3):
        x = (2 + 3 * random.standard_normal(shape)).astype(np.float32)
        dy = random.standard_normal(shape).astype(np.float32)
        got = gradients(net, {"x": x}, {top: dy})
        values, slope = folded(x), folded(dy)
        count = values.size // values.shape[1]
        mean, var = values.mean((0, 2), keepdims=True), values.var((0, 2), keepdims=True)
        normal = (values - mean) / np.sqrt(var + eps)
        dx = slope - slope.mean((0, 2), keepdims=True) - normal * (slope * normal).mean((0, 2), keepdims=True)
        unbiased = var * count / (count - 1)
        running = [fraction * old + new for old, new in zip(running, (mean, unbiased, 1.0))]
        close(folded(got[f"{top} data"]), normal, "y")
        close(folded(got["x diff"]), dx / np.sqrt(var + eps), "dx")
        for i, expected in enumerate(running):
            close(got[f"blob {i}"], np.ravel(expected), f"blob {i}")


def test_in_place_chain_keeps_its_own_input():
    """BatchNorm, Scale and ReLU on one blob give the gradients of the same layers with blobs of their own."""
    shape = (4, 3, 5, 5)
    random = np.random.default_rng(3)
    x, dy = random.standard_normal((2, *shape)).astype(np.float32)
    results = []
    for tops in (["x", "x", "x"], ["a", "b", "c"]):
        bottoms = ["x", *tops[:2]]
        kinds = [("BatchNorm", FRAME), ("Scale", ""), ("ReLU", "")]
        text = inputs({"x": shape}) + "".join(
            layer(kind, ours=True, name=kind, bottoms=[b], tops=[t], frame=frame)
            for (kind, frame), b, t in zip(kinds, bottoms, tops)
        )
        net = load(text + "force_backward: true")
        net.blobs["x"].data[...] = x
        net.forward()
        y = net.blobs[tops[-1]].data.copy()
        net.params["Scale"][0].diff[...] = 0
        net.blobs[tops[-1]].diff[...] = dy
        net.backward()
        results.append((y, net.blobs["x"].diff.copy(), net.params["Scale"][0].diff.copy()))
    for got, expected in zip(*results):
        assert np.array_equal(got, expected)


def test_reshape_between_calls():
    parameters = "batch_norm_param { moving_average_fraction: 0.5 }"
    net = load(
        inputs({"x": (2, 3, 4)}) + layer("BatchNorm", parameters, ours=True, tops=["x"]) + "force_backward: true"
    )
    random = np.random.default_rng(3)
    for shape in ((2, 3, 4), (5, 3, 7), (1, 3, 2), (6, 3, 11)):
        net.blobs["x"].reshape(*shape)
        net.reshape()
        x = random.standard_normal(shape).astype(np.float32)
        net.blobs["x"].data[...] = x
        net.forward()
        close(net.blobs["x"].data.mean((0, 2)), np.zeros(3), "mean", 1e-3)
        net.blobs["x"].diff[...] = 1
        net.backward()
        close(net.blobs["x"].diff, np.zeros(shape), "dx", 2e-2)


@pytest.mark.python_layers
def test_another_number_of_channels_is_refused():
    net = load(inputs({"x": (2, 3, 4)}) + layer("BatchNorm", ours=True))
    net.blobs["x"].reshape(2, 4, 4)
    with pytest.raises(Exception, match=r"\[batchnorm\] got 4 channels, expected 3"):
        net.reshape()
