"""Dropout layer: rates by statistics, the gradient exact for the mask, runs that repeat under Caffe's seed."""

from __future__ import annotations

import math

import numpy as np
import pytest

caffe = pytest.importorskip("caffe")

from clgraft.caffe_layers.swap import swap_net
from tests.caffe_layers.caffe_nets import TEST, TRAIN, compare, gradients, inputs, layer, load

SHAPE = (8, 16, 17, 19)
SIGMAS = 5
RATIO = "dropout_param { dropout_ratio: %s }"


def run(net, shape=SHAPE, top="y") -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Run forward and backward on random numbers away from 0; return x, y, dy and dx."""
    random = np.random.default_rng(5)
    x = (random.uniform(0.5, 2, shape) * random.choice([-1, 1], shape)).astype(np.float32)
    dy = random.uniform(0.5, 2, shape).astype(np.float32)
    found = gradients(net, {"x": x}, {top: dy})
    return x, found[f"{top} data"], dy, found["x diff"]


def make(parameters="", top="y", phase=TRAIN, shape=SHAPE):
    return load(
        inputs({"x": shape}) + layer("Dropout", parameters, ours=True, tops=[top]) + "force_backward: true", phase
    )


@pytest.mark.parametrize("top", ["y", "x"])
@pytest.mark.parametrize("ratio", [0.5, 0.1, 0.95])
def test_rate_scale_and_gradient(ratio, top):
    x, y, dy, dx = run(make(RATIO % ratio, top), top=top)
    kept = y != 0
    rate = 1 - ratio
    assert abs(kept.mean() - rate) < SIGMAS * math.sqrt(rate * ratio / kept.size)
    for axis in range(4):
        each = kept.mean(tuple(a for a in range(4) if a != axis))
        bound = 6 * math.sqrt(rate * ratio * kept.shape[axis] / kept.size)
        assert np.abs(each - rate).max() < bound, f"axis {axis}"
    np.testing.assert_allclose(y, np.where(kept, x / rate, 0), rtol=1e-6)
    np.testing.assert_allclose(dx, np.where(kept, dy / rate, 0), rtol=1e-6)


def test_the_default_ratio_is_a_half():
    x, y, _, _ = run(make())
    np.testing.assert_allclose(y[y != 0], 2 * x[y != 0], rtol=1e-6)


@pytest.mark.parametrize("tops", ["y", "x"])
def test_testing_is_the_identity_as_in_caffe(tops):
    compare("Dropout", RATIO % 0.3, {"x": (2, 3, 5, 7)}, tops=[tops], phase=TEST)


def test_calls_and_layers_are_independent():
    text = inputs({"x": SHAPE}) + layer("Dropout", ours=True, name="a", tops=["y"])
    net = load(text + layer("Dropout", ours=True, name="b", tops=["z"]))
    masks = []
    for _ in range(2):
        net.blobs["x"].data[...] = 1
        net.forward()
        masks += [net.blobs["y"].data != 0, net.blobs["z"].data != 0]
    for i, one in enumerate(masks):
        for other in masks[:i]:
            assert abs((one == other).mean() - 0.5) < SIGMAS * 0.5 / math.sqrt(one.size)


def test_runs_repeat_under_a_seed():
    found = []
    for seed in (7, 7, 8):
        caffe.set_random_seed(seed)
        net = make()
        found += [run(net)[1], run(net)[1]]
    assert np.array_equal(found[0], found[2]) and np.array_equal(found[1], found[3])
    assert not np.array_equal(found[0], found[1]) and not np.array_equal(found[0], found[4])


def test_a_new_shape_and_no_images():
    net = make(shape=(2, 3))
    for shape in ((2, 3), (5, 7), (0, 7), (1, 1)):
        net.blobs["x"].reshape(*shape)
        net.blobs["x"].data[...] = 1
        net.forward()
        assert net.blobs["y"].data.shape == shape
        assert np.isin(net.blobs["y"].data, (0, 2)).all()


@pytest.mark.parametrize("tops", ["y", "x"])
def test_a_ratio_of_0_is_the_identity_as_in_caffe(tops):
    """Caffe's own layer draws random numbers, of which none drops an element."""
    compare("Dropout", RATIO % 0, {"x": (2, 3, 5, 7)}, tops=[tops], phase=TRAIN)


@pytest.mark.python_layers
def test_a_ratio_of_0_in_a_region():
    text = inputs({"x": (2, 3)}) + layer("Dropout", RATIO % 0, ours=False)
    text += layer("Power", "power_param { scale: 2 }", ours=False, name="twice", bottoms=["y"], tops=["z"])
    swapped, report = swap_net(text + "force_backward: true", regions=True)
    assert report.regions
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    found = gradients(load(swapped), {"x": x}, {"z": x + 1})
    assert np.array_equal(found["z data"], 2 * x) and np.array_equal(found["x diff"], 2 * (x + 1))


@pytest.mark.python_layers
@pytest.mark.parametrize("ratio", [1, -0.5])
def test_impossible_ratios_are_refused(ratio):
    with pytest.raises(Exception, match=r"\[dropout\] got dropout_ratio .*, expected a number from 0 to below 1"):
        make(RATIO % ratio)
