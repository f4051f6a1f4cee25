"""Averages of windows that share an image out, window by window, and their gradient."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from clgraft import core
from clgraft.core import ProblemError
from clgraft.core.nn import adaptive_averages
from clgraft.core.nn.builder import Build

ADAPTED = [((7,), (3,)), ((5,), (8,)), ((9, 7), (4, 5)), ((8, 6), (3, 2)), ((6, 8), (3, 4)), ((4, 3, 5), (3, 2, 4))]


def averages(x: np.ndarray, sizes: tuple[int, ...]) -> np.ndarray:
    """Compute the averages window by window."""
    y = np.zeros((*x.shape[:2], *sizes))
    for place in itertools.product(*map(range, sizes)):
        box = tuple(slice(i * n // o, -(-(i + 1) * n // o)) for i, n, o in zip(place, x.shape[2:], sizes))
        y[(..., *place)] = x[(..., *box)].reshape(*x.shape[:2], -1).mean(2)
    return y


@pytest.mark.parametrize(("size", "sizes"), ADAPTED)
def test_windows_of_adapted_sizes_and_their_gradient(size, sizes):
    build, rng = Build(), np.random.default_rng(1)
    x = rng.standard_normal((2, 3, *size)).astype(np.float32)
    dy = rng.standard_normal((2, 3, *sizes)).astype(np.float32)
    y = adaptive_averages.adaptive_average_pool(build, build.input("x", x.shape), sizes)
    dx = adaptive_averages.adaptive_average_pool_gradient(build, build.input("dy", dy.shape), size)
    assert (y.shape, dx.shape) == (dy.shape, x.shape)
    got = core.context().compile(build.graph.graph(y.name, dx.name)).run({"x": x, "dy": dy, **build.constants})
    expected = averages(x.astype(np.float64), sizes)
    np.testing.assert_allclose(got[y.name].reshape(y.shape), expected, rtol=1e-5, atol=1e-5)
    pixels = x[0, 0].size
    # of each element in each average
    shares = averages(np.eye(pixels).reshape(1, pixels, *size), sizes).reshape(pixels, -1)
    np.testing.assert_allclose(got[dx.name].reshape(2, 3, -1), dy.reshape(2, 3, -1) @ shares.T, rtol=1e-5, atol=1e-5)


def test_equal_windows_are_an_ordinary_pooling():
    build = Build()
    y = adaptive_averages.adaptive_average_pool(build, build.input("x", (1, 2, 6, 8)), (3, 4))
    (node,) = build.graph.graph(y.name).nodes
    assert node.problem == core.parse("pool forward average n1 c2 ih6 iw8 kh2 kw2 sh2 sw2")


def test_images_without_elements_are_refused():
    build = Build()
    with pytest.raises(ProblemError, match=r"\[pool\] got shape .*, expected elements"):
        adaptive_averages.adaptive_average_pool(build, build.input("x", (0, 2, 7)), (3,))
