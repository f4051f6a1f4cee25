"""Norms against their definitions in float64: results, gradients, large means, constants, and conventions."""

from __future__ import annotations

import math

import numpy as np
import pytest

from clgraft import core
from clgraft.core.graph.reference import evaluate
from clgraft.core.nn import norms
from clgraft.core.nn.builder import Build, Tensor
from clgraft.core.problem import SMALL
from clgraft.core.problem.dtypes import ROUNDING, expect_in_numpy
from tests.core.nn.functions import built, expect_like

EPS = 1e-5
SHAPES = [
    ((5, 7, 33), (2,), (7, 1)),
    ((4, 50), (1,), (50,)),
    ((3, 4, 9, 11), (2, 3), (4, 1, 1)),
    ((2, 3, 777), (2,), (3, 1)),
]


def data(shape: tuple[int, ...], affine: tuple[int, ...], mean: float = 0.0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(8)
    arrays = {"x": mean + rng.standard_normal(shape)}
    arrays |= {"gamma": rng.uniform(0.5, 1.5, affine), "beta": rng.standard_normal(affine)}
    return {name: value.astype(np.float32) for name, value in arrays.items()}


def normed(x: np.ndarray, axes: tuple[int, ...], eps: float) -> np.ndarray:
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + eps)


@pytest.mark.parametrize(("shape", "folded", "affine"), SHAPES, ids=str)
def test_by_moments(shape, folded, affine):
    def function(build: Build, x: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
        return norms.by_moments(build, x, gamma, beta, folded, eps=EPS)[0]

    expect_like(function, lambda x, gamma, beta: normed(x, folded, EPS) * gamma + beta, data(shape, affine))


def exact(folded: tuple[int, ...], affine: tuple[int, ...], arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Compute a norm by moments and its gradients in float64 from the definition."""
    x, dy, gamma, beta = (arrays[name].astype(np.float64) for name in ("x", "dy0", "gamma", "beta"))
    deviation = np.sqrt(x.var(folded, keepdims=True) + EPS)
    norm = (x - x.mean(folded, keepdims=True)) / deviation
    flow = dy * gamma
    inner = flow - flow.mean(folded, keepdims=True) - norm * (flow * norm).mean(folded, keepdims=True)
    full = (1,) * (x.ndim - len(affine)) + affine
    axes = tuple(axis for axis in range(x.ndim) if full[axis] == 1)
    dgamma, dbeta = ((dy * each).sum(axes).reshape(affine) for each in (norm, 1.0))
    return {"y": norm * gamma + beta, "x": inner / deviation, "gamma": dgamma, "beta": dbeta}


def run(folded: tuple[int, ...], arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Run a norm by moments and its gradients on the device."""

    def function(build: Build, x: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
        return norms.by_moments(build, x, gamma, beta, folded, eps=EPS)[0]

    found = built(function, arrays)
    values = core.context().compile(found.graph).run(found.given(arrays))
    return {"y": values[found.outputs[0]], **{name: values[own] for name, own in found.passes.found.items()}}


@pytest.mark.parametrize("mean", [0.0, 3.0, 1e4, -1e6])
@pytest.mark.parametrize(("shape", "folded", "affine"), SHAPES, ids=str)
def test_matches_float64_at_any_mean(shape, folded, affine, mean):
    arrays = data(shape, affine, mean)
    arrays["dy0"] = np.random.default_rng(9).standard_normal(shape).astype(np.float32)
    expected = exact(folded, affine, arrays)
    for name, got in run(folded, arrays).items():
        most = 4e-6 * np.abs(expected[name]).max()
        np.testing.assert_allclose(got, expected[name], rtol=2e-5, atol=most, err_msg=name)


@pytest.mark.parametrize("dtype", SMALL)
def test_statistics_of_16_bits_are_float32(dtype):
    expect_in_numpy("test", dtype)
    shape, folded, affine = SHAPES[0]
    arrays = data(shape, affine)
    arrays["x"] *= 300  # squares are beyond what float16 has
    arrays["dy0"] = np.random.default_rng(9).standard_normal(shape).astype(np.float32)
    arrays = {name: array.astype(np.dtype(dtype)) for name, array in arrays.items()}
    rounding = ROUNDING[dtype]
    expected, got = exact(folded, affine, arrays), run(folded, arrays)
    for name in ("y", "x"):
        off = np.abs(got[name].reshape(shape).astype(np.float64) - expected[name])
        assert (off <= 1.01 * rounding * np.abs(expected[name]) + 1e-3 * rounding).all(), name

    def lengths(build: Build, x: Tensor) -> tuple[Tensor, ...]:
        ones = build.constant(np.ones((1,), np.dtype(dtype)))
        once = norms.length_norm(build, x, folded, eps=EPS), norms.mean_square_norm(build, x, ones, folded, eps=EPS)
        return (*once, norms.unit_length(build, x, folded), norms.centred_norm(build, x, folded, eps=EPS))

    found = built(lengths, {"x": arrays["x"]})
    given = {"x": arrays["x"], **{f"dy{i}": arrays["x"] for i in range(4)}}
    values = core.context().compile(found.graph).run(found.given(given))
    x = arrays["x"].astype(np.float64)
    square = (x * x).sum(folded, keepdims=True)
    roots = np.sqrt(square), np.sqrt(square / shape[2]), np.sqrt(square)
    wanted = [*(x / root for root in roots), normed(x, folded, EPS)]
    for name, each in zip(found.outputs, wanted):
        off = np.abs(values[name].reshape(shape).astype(np.float64) - each)
        assert (off <= 1.01 * rounding * np.abs(each) + 1e-3 * rounding).all(), name


@pytest.mark.parametrize("value", [0.1, 3.3, 12345.678, -7e5])
@pytest.mark.parametrize(("shape", "folded", "affine"), SHAPES, ids=str)
def test_a_constant_becomes_beta(shape, folded, affine, value):
    arrays = data(shape, affine)
    arrays["x"][:], arrays["beta"][:] = value, 0
    arrays["dy0"] = np.zeros(shape, np.float32)
    assert np.abs(run(folded, arrays)["y"]).max() <= 1e-8 * abs(value)


def test_moments_as_values():
    def function(build: Build, x: Tensor) -> tuple[Tensor, ...]:
        found = norms.moments(build, x, (1,))
        inverse = norms.inverse_deviation(build, found, eps=EPS)
        again = norms.moments_with_deviation(build, x, (1,), inverse)
        return norms.mean(build, found), inverse, norms.inverse_deviation(build, again, eps=0.0)

    x = np.random.default_rng(1).standard_normal((3, 40)).astype(np.float32)
    build = Build()
    outputs = function(build, build.input("x", x.shape))
    values = evaluate(build.graph.graph(*(tensor.name for tensor in outputs)), {"x": x})
    mean, inverse, again = (values[tensor.name] for tensor in outputs)
    wide = x.astype(np.float64)
    np.testing.assert_allclose(mean, wide.mean(1, keepdims=True), rtol=1e-12)
    np.testing.assert_allclose(inverse, 1 / np.sqrt(wide.var(1, keepdims=True) + EPS), rtol=1e-12)
    np.testing.assert_allclose(again, inverse, rtol=1e-9)  # whose eps is in the deviation


@pytest.mark.parametrize("axis", [1, 2])
def test_batch_norm_by_the_batch(axis):
    axes = tuple(i for i in range(3) if i != axis)
    shape = (4, 5, 6)

    def function(build: Build, x: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
        return norms.batch_norm(build, x, gamma, beta, eps=EPS, axis=axis).y

    def definition(x: np.ndarray, gamma: np.ndarray, beta: np.ndarray) -> np.ndarray:
        along = [-1 if i == axis else 1 for i in range(3)]
        return normed(x, axes, EPS) * gamma.reshape(along) + beta.reshape(along)

    expect_like(function, definition, data(shape, (shape[axis],)))


@pytest.mark.parametrize("learned", [True, False])
def test_batch_norm_by_given_statistics(learned):
    def function(build: Build, x: Tensor, *affine: Tensor) -> Tensor:
        statistics = build.filled((5,), 0.25), build.filled((5,), 1.5)
        return norms.batch_norm(build, x, *(affine or (None, None)), statistics, eps=EPS).y

    def definition(x: np.ndarray, *affine: np.ndarray) -> np.ndarray:
        gamma, beta = affine or (np.ones(5), np.zeros(5))
        return (x - 0.25) * (gamma / np.sqrt(1.5 + EPS))[:, None] + beta[:, None]

    arrays = data((3, 5, 7), (5,))
    expect_like(function, definition, arrays if learned else {"x": arrays["x"]})


def test_given_statistics_alone_need_no_x_for_the_gradient():
    def function(build: Build, x: Tensor) -> Tensor:
        return norms.batch_norm(build, x, None, None, (build.filled((5,), 0.0), build.filled((5,), 1.0)), eps=EPS).y

    found = built(function, {"x": np.ones((2, 5, 3), np.float32), "dy0": np.ones((2, 5, 3), np.float32)})
    assert "x" not in {name for node in found.passes.backward for name in node.reads}


def test_averages_of_statistics():
    build = Build()
    normed_x = norms.batch_norm(build, build.input("x", (4, 2)), None, None, eps=EPS)
    moving = build.input("mean", (2,)), build.input("var", (2,))
    add = 0.2, 0.2 * norms.unbiased(4)
    outputs = norms.inverse_and_moved_averages(build, normed_x, moving, eps=EPS, keep=0.8, add=add)
    single = norms.moved_average(build, moving[0], normed_x.mean, keep=0.8, add=0.2)
    x = np.random.default_rng(3).standard_normal((4, 2)).astype(np.float32)
    before = {"mean": np.array([1.0, 2.0], np.float32), "var": np.array([3.0, 4.0], np.float32)}
    names = [tensor.name for tensor in (*outputs, single)]
    values = evaluate(build.graph.graph(*names), {"x": x, **before, **build.constants})
    wide = x.astype(np.float64)
    expected = 0.8 * before["mean"] + 0.2 * wide.mean(0)
    np.testing.assert_allclose(values[names[0]], 1 / np.sqrt(wide.var(0) + EPS))
    np.testing.assert_allclose(values[names[1]], expected)
    np.testing.assert_allclose(values[names[2]], 0.8 * before["var"] + 0.2 * wide.var(0, ddof=1))
    np.testing.assert_allclose(values[names[3]], expected)
    assert math.isnan(norms.unbiased(1)) and norms.unbiased(1, single=1.0) == 1


@pytest.mark.parametrize("eps", [1e-3, None])
def test_centred_norm_adds_eps_to_the_deviation(eps):
    def definition(x: np.ndarray) -> np.ndarray:
        centred = x - x.mean(1, keepdims=True)
        return centred if eps is None else centred / (x.std(1, keepdims=True) + eps)

    x = np.random.default_rng(4).standard_normal((3, 40)).astype(np.float32)
    if eps is None:
        expect_like(lambda build, value: norms.centred_norm(build, value, (1,), eps=None), definition, {"x": x})
        return
    # Caffe's gradient takes eps for 0 where it is divided by the deviation: near enough for a small one
    found = built(lambda build, value: norms.centred_norm(build, value, (1,), eps=eps), {"x": x})
    values = evaluate(found.graph, found.given({"x": x, "dy0": np.zeros_like(x)}))
    np.testing.assert_allclose(values[found.outputs[0]], definition(x.astype(np.float64)), rtol=1e-10)


@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("axes", [(1,), (1, 2)])
def test_length_norm(scaled, axes):
    rng = np.random.default_rng(5)
    arrays = {"x": rng.standard_normal((3, 4, 5)), "scale": rng.uniform(0.5, 2, (1, 4, 1))}
    arrays = {name: array.astype(np.float32) for name, array in arrays.items() if scaled or name == "x"}

    def function(build: Build, x: Tensor, scale: Tensor | None = None) -> Tensor:
        return norms.length_norm(build, x, axes, eps=EPS, scale=scale)

    def definition(x: np.ndarray, scale: np.ndarray | float = 1.0) -> np.ndarray:
        return scale * x / np.sqrt((x * x).sum(axes, keepdims=True) + EPS)

    expect_like(function, definition, arrays)


@pytest.mark.parametrize("absolute", [True, False])
def test_zeros_have_no_length(absolute):
    x = np.random.default_rng(6).standard_normal((3, 6)).astype(np.float32)
    x[1] = 0
    build = Build()
    y = norms.unit_length(build, build.input("x", x.shape), (1,), absolute=absolute)
    values = evaluate(build.graph.graph(y.name), {"x": x})
    with np.errstate(invalid="ignore"):
        length = (
            np.abs(x).sum(1, keepdims=True) if absolute else np.sqrt((x.astype(np.float64) ** 2).sum(1, keepdims=True))
        )
        np.testing.assert_allclose(values[y.name], np.where(length == 0, 0, x / length), rtol=1e-6)


def test_mean_square_norm():
    rng = np.random.default_rng(7)
    arrays = {"x": rng.standard_normal((3, 4, 5)), "gamma": rng.uniform(0.5, 1.5, 5)}

    def definition(x: np.ndarray, gamma: np.ndarray) -> np.ndarray:
        return x / np.sqrt((x * x).mean((1, 2), keepdims=True) + EPS) * gamma

    expect_like(
        lambda build, x, gamma: norms.mean_square_norm(build, x, gamma, (1, 2), eps=EPS),
        definition,
        {name: array.astype(np.float32) for name, array in arrays.items()},
    )


def around(x: np.ndarray, size: int) -> np.ndarray:
    """Return sums over windows of channels."""
    wide = np.pad(x, ((0, 0), (size // 2, size // 2), (0, 0)))
    return sum(wide[:, i : i + x.shape[1]] for i in range(size))


@pytest.mark.parametrize("size", [3, 4])
def test_local_response_norm(size):
    """A window of 4 channels reaches as far as one of 3."""
    x = np.random.default_rng(8).standard_normal((2, 6, 5)).astype(np.float32)
    given = {"size": size, "alpha": 0.4, "beta": 0.75, "k": 2.0}
    expect_like(
        lambda build, value: norms.local_response_norm(build, value, **given),
        lambda value: value * (2 + 0.4 / size * around(value * value, 3)) ** -0.75,
        {"x": x},
    )


@pytest.mark.parametrize("beta", [0.75, 0.6])
def test_window_norm(beta):
    x = np.random.default_rng(9).standard_normal((2, 3, 5, 6)).astype(np.float32)

    def definition(value: np.ndarray) -> np.ndarray:
        wide = np.pad(value * value, ((0, 0), (0, 0), (1, 1), (1, 1)))
        total = sum(wide[:, :, i : i + 5, j : j + 6] for i in range(3) for j in range(3))
        # padding counts, as in Caffe
        return value * (1 + 0.4 * total / 9) ** -beta

    expect_like(
        lambda build, value: norms.window_norm(build, value, size=3, alpha=0.4, beta=beta), definition, {"x": x}
    )
