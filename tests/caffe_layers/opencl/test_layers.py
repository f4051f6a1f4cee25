"""Forward and backward passes of the C++ layers on the branch's device equal Caffe's own on the host."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.caffe_layers.opencl import nets

# The branch's CPU mode rounds the argument of tanh to half precision: what uses it is compared with the formula.
EXACT = ("sigmoid", "tanh", "swish")
BETA = 1.5  # of swish


def formula(name: str, x: np.ndarray, dy: np.ndarray) -> tuple:
    """Return one of EXACT and its gradient in float64."""
    x, dy = x.astype(np.float64), dy.astype(np.float64)
    if name == "tanh":
        return np.tanh(x), dy * (1 - np.tanh(x) ** 2)
    half = 1 / (1 + np.exp(-(BETA if name == "swish" else 1) * x))
    if name == "sigmoid":
        return half, dy * half * (1 - half)
    return x * half, dy * (half + BETA * x * half * (1 - half))


def assert_same(expected: dict, got: dict, names: list, tolerance: float = 1e-4) -> None:
    """Compare arrays relative to the largest value of each."""
    assert names
    wrong = []
    for name in names:
        assert expected[name].shape == got[name].shape, name
        scale = max(np.abs(expected[name]).max(initial=0), 1e-6)
        difference = np.abs(expected[name].astype(np.float64) - got[name]).max(initial=0) / scale
        if not difference <= tolerance:
            wrong.append(f"{name}: {difference:.3g}")
    assert not wrong, wrong


@pytest.fixture(scope="module")
def passes(branch):
    """All layers: Caffe's own on the host, and clgraft's on the device."""
    return branch.net(nets.all_layers(), "cpu"), branch.net(nets.all_layers(), "gpu", ours="all")


def of(name: str, blobs: dict) -> list:
    """Return the names of a layer's tops and their gradients, and of the gradients of what it reads."""
    read = nets.LAYERS[name][2].split()
    wanted = {f"{name}_y", *(f"{name}_y{i}" for i in range(nets.LAYERS[name][3]))}
    number = {bottom: readers(bottom).index(name) for bottom in read if bottom not in ("label", "small")}
    split = [
        f"d.{bottom}_{bottom}_0_split_{i}" if len(readers(bottom)) > 1 else f"d.{bottom}"
        for bottom, i in number.items()
    ]
    return [one for one in blobs if one in wanted or one.removeprefix("d.") in wanted or one in split]


def readers(bottom: str) -> list:
    """Return the layers that read an input, in order."""
    return [name for name, (_, _, bottoms, _) in nets.LAYERS.items() if bottom in bottoms.split()]


@pytest.mark.parametrize("name", nets.LAYERS)
def test_equals_the_host_s(passes, name):
    own, ours = passes
    names = of(name, own.blobs)
    assert set(names) == set(of(name, ours.blobs))
    expected = dict(own.blobs)
    if name in EXACT:
        top, gradient = f"{name}_y", next(one for one in names if one.startswith("d.x"))
        expected[top], expected[gradient] = formula(name, own.blobs["x"], own.blobs[f"d.{top}"])
    assert_same(expected, ours.blobs, names)


def test_parameters_and_their_gradients_equal_the_host_s(passes):
    own, ours = passes
    names = [name for name in own.blobs if re.match(r"(d\.)?param\d+$", name)]
    assert len(names) >= 2 * 20
    assert_same(own.blobs, ours.blobs, names)


def test_clgraft_served_all_of_them(passes):
    assert "stays Caffe's own" not in passes[1].printed
    assert int(re.search(r"launches (\d+)", passes[1].printed)[1]) >= 2 * len(nets.LAYERS) - 4


def test_a_net_that_works_in_place_equals_the_host_s(branch):
    own, ours = branch.net(nets.chain(), "cpu"), branch.net(nets.chain(), "gpu", ours="all")
    assert set(own.blobs) == set(ours.blobs)
    names = [name for name in own.blobs if name not in ("label", "d.label", "d.x", "x")]
    assert_same(own.blobs, ours.blobs, [*names, "d.x"], 1e-3)
