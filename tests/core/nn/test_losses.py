"""Softmax and losses against their definitions in float64, with derived and with stated gradients."""

from __future__ import annotations

import numpy as np
import pytest

from clgraft import core
from clgraft.core.graph.reference import evaluate
from clgraft.core.nn import losses, softmax
from clgraft.core.nn.builder import Build, Tensor
from tests.core.nn.functions import Built, built, expect_like

X = np.random.default_rng(1).standard_normal((3, 4, 5)).astype(np.float32)
LABEL = np.array([0, 2, 1], np.float32)


def powers(x: np.ndarray, axis: int = 1) -> np.ndarray:
    found = np.exp(x - x.max(axis, keepdims=True))
    return found / found.sum(axis, keepdims=True)


def values(function, arrays: dict[str, np.ndarray], training: bool = True) -> tuple[Built, dict[str, np.ndarray]]:
    """Return a function as it is built, and all its values in float64."""
    found = built(function, arrays, training=training)
    return found, evaluate(found.graph, found.given(arrays))


@pytest.mark.parametrize("log", [True, False])
@pytest.mark.parametrize("temperature", [1.0, -2.0])
def test_softmax(log, temperature):
    def definition(x: np.ndarray) -> np.ndarray:
        found = powers(x / temperature)
        return np.log(found) if log else found

    expect_like(
        lambda build, x: softmax.softmax(build, x, softmax.around(x.shape, 1), temperature=temperature, log=log),
        definition,
        {"x": X},
    )


def test_safe_softmax_of_nothing_but_minus_infinity():
    x = X.copy()
    x[:, 1] = -np.inf
    build = Build()
    y = softmax.safe_softmax(build, build.input("x", x.shape), 2)
    with np.errstate(invalid="ignore"):
        found = evaluate(build.graph.graph(y.name), {"x": x})[y.name]
    assert not found[:, 1].any()
    np.testing.assert_allclose(found[:, 0], powers(x[:, 0].astype(np.float64)))


@pytest.mark.parametrize("sizes", [softmax.around((2, 3, 4), 1), softmax.around_all_from((2, 3, 4), 1)])
def test_hardmax_takes_the_first_of_equals(sizes):
    x = np.array(
        [[[1, 2, 0, 3], [2, 2, 0, 3], [2, 1, 0, 3]], [[-1, 0, 5, 1], [-1, 0, 4, 1], [-2, 0, 5, 1]]], np.float32
    )
    build = Build()
    y = softmax.hardmax(build, build.input("x", x.shape), sizes)
    graph, given = build.graph.graph(y.name), {"x": x, **build.constants}
    expected = np.arange(sizes[1])[:, None] == x.reshape(sizes).argmax(1)[:, None]
    for found in (evaluate(graph, given), core.context().compile(graph).run(given)):
        np.testing.assert_array_equal(found[y.name].reshape(sizes), expected)


def test_cross_entropy_has_one_gradient():
    def function(build: Build, x: Tensor, label: Tensor) -> Tensor:
        return losses.softmax_cross_entropy(build, x, label, (3, 20, 1), lowest=1e-8)

    x = X.reshape(3, 20)
    found, got = values(function, {"x": x, "label": LABEL, "dy0": np.full(1, 2.0, np.float32)})
    probabilities = powers(x.astype(np.float64))
    np.testing.assert_allclose(got[found.outputs[0]], -np.log(probabilities[range(3), LABEL.astype(int)]).sum())
    probabilities[range(3), LABEL.astype(int)] -= 1
    np.testing.assert_allclose(got[found.passes.found["x"]].reshape(3, 20), 2 * probabilities)
    assert not got[found.passes.found["label"]].any()


@pytest.mark.parametrize("counted", [None, 2.0])
@pytest.mark.parametrize("weighted", [True, False])
def test_softmax_with_labels(counted, weighted):
    def function(build: Build, x: Tensor, label: Tensor) -> Tensor:
        options = {"scale": 0.5, "ignored": 2.0, "counted": counted, "weighted": weighted}
        return losses.softmax_with_labels(build, x, label, (3, 20, 1), **options)

    x, dy = X.reshape(3, 20), np.random.default_rng(2).standard_normal((3, 20)).astype(np.float32)
    found, got = values(function, {"x": x, "label": LABEL, "dy0": dy})
    expected = powers(x.astype(np.float64))
    np.testing.assert_allclose(got[found.outputs[0]].reshape(3, 20), expected)
    expected[range(3), LABEL.astype(int)] -= 1
    expected[LABEL == 2] = 0
    expected *= (dy if weighted else 1) * (0.25 if counted else 0.5)
    np.testing.assert_allclose(got[found.passes.found["x"]].reshape(3, 20), expected)


@pytest.mark.parametrize("weighted", [True, False])
def test_softmax_with_targets(weighted):
    def function(build: Build, x: Tensor, target: Tensor) -> Tensor:
        return losses.softmax_with_targets(build, x, target, (3, 4, 5), scale=0.5, weighted=weighted)

    dy = np.random.default_rng(2).standard_normal(X.shape).astype(np.float32)
    found, got = values(function, {"x": X, "target": X[::-1].copy(), "dy0": dy})
    expected = 0.5 * (powers(X.astype(np.float64)) - X[::-1]) * (dy if weighted else 1)
    np.testing.assert_allclose(got[found.passes.found["x"]], expected)


def test_a_result_of_other_sizes_in_inference():
    def function(build: Build, x: Tensor, target: Tensor) -> Tensor:
        shown = () if build.training else (1, 5, 1)
        return losses.softmax_with_targets(build, x, target, (5, 1, 1), scale=1.0, weighted=False, shown=shown)

    x = X[0, 0]
    for training, expected in ((True, np.ones(5)), (False, powers(x.astype(np.float64), 0))):
        found, got = values(function, {"x": x, "target": x, "dy0": x}, training)
        np.testing.assert_allclose(got[found.outputs[0]].reshape(5), expected)


@pytest.mark.parametrize("ignored", [None, 2.0])
def test_summed_cross_entropy(ignored):
    def function(build: Build, x: Tensor, label: Tensor) -> tuple[Tensor, ...]:
        return losses.summed_cross_entropy(build, x, label, (3, 20, 1), lowest=1e-30, ignored=ignored, scale=0.5)

    x = X.reshape(3, 20)
    found, got = values(function, {"x": x, "label": LABEL, "dy0": np.ones(1, np.float32)})
    loss, counts, y = (got[name] for name in found.outputs)
    expected = powers(x.astype(np.float64))
    np.testing.assert_allclose(y.reshape(3, 20), expected)
    terms = -np.log(expected[range(3), LABEL.astype(int)])
    kept = np.ones(3, bool) if ignored is None else ignored != LABEL
    np.testing.assert_allclose(loss, terms[kept].sum())
    assert counts.tolist() == [kept.sum(), 0]
    expected[range(3), LABEL.astype(int)] -= 1
    np.testing.assert_allclose(got[found.passes.found["x"]].reshape(3, 20), 0.5 * expected * kept[:, None])


def test_summed_sigmoid_cross_entropy():
    target = np.random.default_rng(2).integers(0, 2, X.shape).astype(np.float32)
    target[0, 0, 0] = 7

    def function(build: Build, x: Tensor, given: Tensor) -> tuple[Tensor, ...]:
        return losses.summed_sigmoid_cross_entropy(build, x, given, ignored=7.0, scale=0.5)

    found, got = values(function, {"x": X, "t": target, "dy0": np.ones(1, np.float32)})
    sigmoid, kept = 1 / (1 + np.exp(-X.astype(np.float64))), target != 7
    terms = -target * np.log(sigmoid) - (1 - target) * np.log(1 - sigmoid)
    loss, valid = (got[name] for name in found.outputs)
    np.testing.assert_allclose(loss, terms[kept].sum())
    assert valid == kept.sum()
    np.testing.assert_allclose(got[found.passes.found["x"]].reshape(X.shape), 0.5 * (sigmoid - target) * kept)


def test_squared_distance():
    a, b = X, X[::-1].copy()
    found, got = values(
        lambda build, *both: losses.squared_distance(build, *both, scale=0.5),
        {"a": a, "b": b, "dy0": np.ones(1, np.float32)},
    )
    apart = a.astype(np.float64) - b
    np.testing.assert_allclose(got[found.outputs[0]], (apart**2).sum())
    for name, scale in (("a", 0.5), ("b", -0.5)):
        np.testing.assert_allclose(got[found.passes.found[name]].reshape(X.shape), scale * apart)


@pytest.mark.parametrize("loss", sorted(losses.REGRESSIONS))
def test_regression(loss):
    label = X[::-1].copy()
    found, got = values(
        lambda build, x, given: losses.regression(build, x, given, loss, scale=0.5), {"x": X, "l": label, "dy0": X}
    )
    y = 1 / (1 + np.exp(-X.astype(np.float64))) if loss == "logistic" else X.astype(np.float64)
    np.testing.assert_allclose(got[found.outputs[0]].reshape(X.shape), y)
    slope = np.where(y > label, 1, -1) if loss == "mae" else y - label
    np.testing.assert_allclose(got[found.passes.found["x"]].reshape(X.shape), 0.5 * slope)
