"""Convolutions and deconvolutions with padding of any sign, against sums in float64, with gradients."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from clgraft import core
from clgraft.core import ProblemError
from clgraft.core.nn import convolution
from clgraft.core.nn.builder import Build, Tensor
from tests.core.nn.functions import built, expect_like

RNG = np.random.default_rng(1)
X = RNG.standard_normal((2, 3, 6, 7)).astype(np.float32)
B = RNG.standard_normal(4).astype(np.float32)


def scattered(x: np.ndarray, w: np.ndarray, stride: tuple[int, int]) -> np.ndarray:
    """Return the whole result of a deconvolution."""
    size = [(i - 1) * s + k for i, s, k in zip(x.shape[2:], stride, w.shape[2:])]
    found = np.zeros((x.shape[0], w.shape[1], *size))
    for i, j in itertools.product(*map(range, w.shape[2:])):
        rows = slice(i, i + (x.shape[2] - 1) * stride[0] + 1, stride[0])
        columns = slice(j, j + (x.shape[3] - 1) * stride[1] + 1, stride[1])
        found[:, :, rows, columns] += np.einsum("nchw,co->nohw", x, w[:, :, i, j])
    return found


def moved(x: np.ndarray, begin: tuple[int, ...], end: tuple[int, ...]) -> np.ndarray:
    """Return padding of the last two axes, or what it leaves where it is negative."""
    x = np.pad(x, ((0, 0), (0, 0), *((max(b, 0), max(e, 0)) for b, e in zip(begin, end))))
    at = [slice(max(-b, 0), size - max(-e, 0)) for b, e, size in zip(begin, end, x.shape[2:])]
    return x[:, :, at[0], at[1]]


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize(("pad", "end"), [((0, 0), (0, 0)), ((1, 2), (0, 1)), ((-1, 1), (2, -2))])
def test_convolution(pad, end, biased):
    w = RNG.standard_normal((4, 3, 3, 2)).astype(np.float32)

    def function(build: Build, *values: Tensor) -> Tensor:
        return convolution.convolution(build, *values, stride=(2, 1), pad=pad, pad_end=end)

    def definition(x: np.ndarray, w: np.ndarray, *b: np.ndarray) -> np.ndarray:
        wide = moved(x, pad, end)
        windows = np.lib.stride_tricks.sliding_window_view(wide, w.shape[2:], (2, 3))[:, :, ::2]
        y = np.einsum("nchwij,ocij->nohw", windows, w)
        return y + (b[0][:, None, None] if b else 0)

    expect_like(function, definition, {"x": X, "w": w, **({"b": B} if biased else {})})


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize(
    ("pad", "end", "extra"),
    [((1, 0), (0, 1), (0, 0)), ((0, 0), (1, 0), (1, 2)), ((1, 0), (0, 0), (1, 1)), ((-1, 1), (0, -2), (1, 0))],
)
def test_deconvolution(pad, end, extra, biased):
    w = RNG.standard_normal((3, 4, 3, 2)).astype(np.float32)

    def function(build: Build, *values: Tensor) -> Tensor:
        given = {"pad": pad, "pad_end": end, "extra": extra, "dilate": (1, 1), "stride": (2, 2)}
        return convolution.deconvolution(build, *values, **given)

    def definition(x: np.ndarray, w: np.ndarray, *b: np.ndarray) -> np.ndarray:
        y = moved(scattered(x, w, (2, 2)), tuple(-p for p in pad), tuple(e - q for e, q in zip(extra, end)))
        return y + (b[0][:, None, None] if b else 0)

    expect_like(function, definition, {"x": X, "w": w, **({"b": B} if biased else {})})


def test_nothing_left_is_refused():
    build = Build()
    x, w = build.input("x", (1, 1, 2, 2)), build.input("w", (1, 1, 2, 2))
    given = {"pad": (4, 0), "pad_end": (0, 0), "extra": (0, 0), "dilate": (1, 1), "stride": (2, 2)}
    with pytest.raises(ProblemError, match="expected less than the result of"):
        convolution.deconvolution(build, x, w, **given)


def gradients_like_those_of_graphs(function, gradients, shapes, sizes):
    """Compare gradients that are asked for with those that are derived, and leave out what is not wanted."""
    rng = np.random.default_rng(2)
    arrays = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    found = built(lambda build, *given: function(build, *given, **sizes), arrays)
    derived = core.context().compile(found.graph).run(found.given(arrays))
    build = Build()
    x, w, dy = (build.input(name, shapes[name]) for name in ("x", "w", "dy0"))
    dx, nothing, db = gradients(build, dy, x, w, (True, False, True), **sizes)
    (_, dw, _) = gradients(build, dy, x, w, (False, True, False), **sizes)
    assert nothing is None
    graph = build.graph.graph(dx.name, dw.name, db.name)
    got = core.context().compile(graph).run({name: arrays[name] for name in ("x", "w", "dy0")})
    for name, tensor in (("x", dx), ("w", dw), ("b", db)):
        expected = derived[found.passes.found[name]]
        np.testing.assert_allclose(got[tensor.name].reshape(expected.shape), expected, rtol=1e-5, atol=1e-5)


def test_gradients_of_convolutions():
    shapes = {"x": (2, 4, 6, 7), "w": (6, 2, 3, 2), "b": (6,), "dy0": (2, 6, 3, 8)}
    sizes = {"stride": (2, 1), "pad": (1, 1), "groups": 2}
    gradients_like_those_of_graphs(convolution.convolution, convolution.convolution_gradients, shapes, sizes)


@pytest.mark.parametrize(("extra", "rows"), [((0, 0), 11), ((1, 1), 12)])
def test_gradients_of_deconvolutions(extra, rows):
    shapes = {"x": (2, 4, 6, 7), "w": (4, 3, 3, 2), "b": (6,), "dy0": (2, 6, rows, rows + 1)}
    sizes = {"stride": (2, 2), "pad": (1, 1), "dilate": (1, 1), "extra": extra, "groups": 2}
    gradients_like_those_of_graphs(convolution.deconvolution, convolution.deconvolution_gradients, shapes, sizes)
