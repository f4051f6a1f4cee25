"""Elements that move, reductions, resizing and dropout, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from clgraft import core
from clgraft.core.graph.reference import evaluate
from clgraft.core.nn import (
    dropout,
    elementwise,
    indices,
    pooling,
    quantization,
    reductions,
    resizing,
    shapes,
)
from clgraft.core.nn.builder import Build, Tensor
from tests.core.nn.functions import built, expect_like

X = np.random.default_rng(1).standard_normal((2, 4, 6, 4)).astype(np.float32)


def test_joined_and_split():
    expect_like(
        lambda build, a, b: shapes.joined(build, [a, b], 2),
        lambda a, b: np.concatenate([a, b], 2),
        {"a": X, "b": X[:, :, :3].copy()},
    )
    for part, bounds in enumerate(((0, 1), (1, 4))):
        expect_like(
            lambda build, x, p=part: shapes.split(build, x, 1, (1, 3))[p],
            lambda x, at=bounds: x[:, at[0] : at[1]],
            {"x": X},
        )


def test_cut_with_steps_and_borders():
    expect_like(
        lambda build, x: shapes.cut(build, x, (2, 4, 2, 4), (0, 0, 5, 0), (1, 1, -3, 1)),
        lambda x: x[:, :, 5::-3],
        {"x": X},
    )
    for mode in ("edge", "reflect"):
        expect_like(
            lambda build, x, m=mode: shapes.bordered(build, x, m, (0, 0, 1, 2), (0, 0, 2, 0)),
            lambda x, m=mode: np.pad(x, ((0, 0), (0, 0), (1, 2), (2, 0)), m),
            {"x": X},
        )
    expect_like(
        lambda build, x: shapes.in_constant(build, x, (2, 4, 6, 7), (0, 0, 0, 2), 1.5),
        lambda x: np.pad(x, ((0, 0), (0, 0), (0, 0), (2, 1)), constant_values=1.5),
        {"x": X},
    )


def test_other_orders():
    expect_like(lambda build, x: shapes.transposed(build, x, (0, 2, 3, 1)), lambda x: x.transpose(0, 2, 3, 1), {"x": X})

    def to_channels(x: np.ndarray) -> np.ndarray:
        return x.reshape(2, 4, 3, 2, 2, 2).transpose(0, 3, 5, 1, 2, 4).reshape(2, 16, 3, 2)

    expect_like(lambda build, x: shapes.blocks_to_channels(build, x, 2), to_channels, {"x": X})

    def there_and_back(build: Build, x: Tensor) -> Tensor:
        return shapes.channels_to_blocks(build, shapes.blocks_to_channels(build, x, 2), 2)

    expect_like(there_and_back, lambda x: x, {"x": X})

    def channels_first(x: np.ndarray) -> np.ndarray:
        return x.reshape(2, 4, 3, 2, 2, 2).transpose(0, 1, 3, 5, 2, 4).reshape(2, 16, 3, 2)

    expect_like(lambda build, x: shapes.blocks_to_channels(build, x, 2, pixel_first=False), channels_first, {"x": X})
    expect_like(lambda build, x: shapes.turned(build, x, (1, 3)), lambda x: x[:, ::-1, :, ::-1], {"x": X})
    for upper, part in ((True, np.triu), (False, np.tril)):
        expect_like(
            lambda build, x, u=upper: shapes.triangle(build, x, -1, upper=u), lambda x, of=part: of(x, -1), {"x": X}
        )


def test_parts_of_an_axis():
    assert shapes.parts_of(9, count=3) == [3, 3, 3]
    assert shapes.parts_of(7, count=3) == [3, 3, 1]
    assert shapes.parts_of(4, count=3) == [2, 2, 0]
    assert shapes.parts_of(9, length=4) == [4, 4, 1]
    assert shapes.parts_of(0, length=4) == []


@pytest.mark.parametrize("whole", [True, False])
def test_repeated(whole):
    def definition(x: np.ndarray) -> np.ndarray:
        return np.tile(x, (1, 3, 1, 2)) if whole else x.repeat(3, 1).repeat(2, 3)

    expect_like(lambda build, x: shapes.repeated(build, x, (1, 3, 1, 2), whole=whole), definition, {"x": X})


def test_copies():
    expect_like(lambda build, x: shapes.copied(build, x, (8, 24)), lambda x: x.reshape(8, 24), {"x": X})
    expect_like(dropout.same, lambda x: x, {"x": X})


@pytest.mark.parametrize("operation", ["sum", "mean", "max", "min"])
def test_folded(operation):
    expect_like(
        lambda build, x: reductions.folded(build, x, (1, 3), operation),
        lambda x: getattr(x, operation)((1, 3), keepdims=True),
        {"x": X},
    )


def test_every_extreme_gets_the_gradient():
    given = {"x": np.array([[3, 1, 3]], np.float32), "dy0": np.array([[2]], np.float32)}
    found = built(lambda build, x: reductions.folded(build, x, (1,), "max"), given)
    gradient = evaluate(found.graph, found.given(given))[found.passes.found["x"]]
    assert gradient.tolist() == [[2, 0, 2]]


@pytest.mark.parametrize(("value", "of"), [("sum", lambda x: x), ("absolute", np.abs), ("squares", np.square)])
def test_summed(value, of):
    expect_like(
        lambda build, x: reductions.summed(build, x, (2, 3), value, factor=0.5),
        lambda x: 0.5 * of(x).sum((2, 3), keepdims=True),
        {"x": X},
    )


def test_logarithms_of_sums_of_exponentials():
    """Large elements do not overflow, and infinite ones make what NumPy's `logaddexp` makes of them."""
    x = np.concatenate([X, 1000 * X, np.full((1, 4, 6, 4), -np.inf), np.where(X[:1] > 1.5, np.inf, X[:1])])
    x = x.astype(np.float32)
    build = Build()
    y = reductions.log_of_exponentials(build, build.input("x", x.shape), (1, 3))
    expected = np.logaddexp.reduce(np.logaddexp.reduce(x.astype(np.float64), 1, keepdims=True), 3, keepdims=True)
    assert y.shape == expected.shape and np.isposinf(expected).any() and np.isneginf(expected).any()
    graph = build.graph.graph(y.name)
    np.testing.assert_allclose(evaluate(graph, {"x": x})[y.name], expected, rtol=1e-12)
    np.testing.assert_allclose(core.context().compile(graph).run({"x": x})[y.name], expected, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("x", [X, X + 10, -X[:1] - 10, np.full((1, 1), -3, np.float32)])
def test_bytes_that_hold_all_elements(x):
    build = Build()
    scale, zero = quantization.bytes_scale_and_zero(build, build.input("x", x.shape))
    found = evaluate(build.graph.graph(scale.name, zero.name), {"x": x})
    width = max(x.max(), 0) - min(x.min(), 0)
    np.testing.assert_allclose(found[scale.name], width / 255, rtol=1e-6)
    assert scale.shape == zero.shape == () and found[zero.name] == np.rint(-min(x.min(), 0) / (width / 255))


def test_first_elements_reversed():
    """In both orders of axes: sequences of 4 times, of which the first 3 and none are reversed."""
    table = indices.reversed_first([3, 0], 4)
    assert table.tolist() == [[2, 1, 0, 3], [0, 1, 2, 3]]
    assert indices.reversed_first([3, 0], 4, columns=2).tolist() == [[2, 2, 0, 0], [1, 1, 1, 1], [0, 0, 2, 2], [3] * 4]


def test_matrices_of_axes():
    assert [shapes.matrix_shape((2, 3, 5), axis) for axis in range(4)] == [(1, 30), (2, 15), (6, 5), (30, 1)]


def test_resized():
    def definition(x: np.ndarray) -> np.ndarray:
        return x.repeat(2, 2).repeat(2, 3)

    words = "nearest", "asymmetric", "floor"
    expect_like(lambda build, x: resizing.resized(build, x, (12, 8), *words), definition, {"x": X})
    build = Build()
    dy = np.ones((2, 4, 12, 8), np.float32)
    dx = resizing.resized_gradient(build, build.input("dy", dy.shape), X.shape, *words)
    assert (evaluate(build.graph.graph(dx.name), {"dy": dy})[dx.name] == 4).all()


def test_channels_shuffled_and_gates():
    expect_like(lambda build, x: shapes.shuffled_channels(build, x, 2), lambda x: x[:, [0, 2, 1, 3]], {"x": X})
    gates = {"a": X[:, :, :1, :1].copy(), "x": X, "y": X[::-1].copy()}
    expect_like(elementwise.gated_sum, lambda a, x, y: a * x + y, gates)


def test_elements_at_their_places():
    """One of them is nowhere."""
    found = np.array([[[[3, 0, 11], [-1, 7, 5]]]], np.float32)
    x, dy = X[:1, :1, :2, :3].copy(), np.arange(12, dtype=np.float32).reshape(1, 1, 3, 4)
    made = built(lambda build, x, at: pooling.unpooled(build, x, at, (3, 4)), {"x": x, "at": found, "dy0": dy})
    got = evaluate(made.graph, made.given({"x": x, "at": found, "dy0": dy}))
    expected = np.zeros(12)
    expected[[3, 0, 11, 7, 5]] = x.reshape(-1)[[0, 1, 2, 4, 5]]
    np.testing.assert_array_equal(got[made.outputs[0]].reshape(-1), expected)
    np.testing.assert_array_equal(got[made.passes.found["x"]].reshape(-1), [3, 0, 11, 0, 7, 5])


def test_dropout_keeps_its_mean_and_draws_again():
    def function(build: Build, x: Tensor) -> Tensor:
        return dropout.dropout(build, x, build.input("key", (4,), "int32"), 0.25, (1,))

    build = Build(training=True)
    x = build.input("x", (4, 3, 1000))
    passes = build.passes([function(build, x)], ["x"])
    first, last = passes.forward[0].problem, passes.backward[0].problem
    assert (first.mask, last.direction) == ((4, 1, 1000), "backward")
    ones = {"x": np.ones((4, 3, 1000), np.float32), "key": np.arange(4, dtype=np.int32)}
    y = evaluate(build.graph.graph(passes.outputs[0].name), ones)[passes.outputs[0].name]
    np.testing.assert_allclose(np.unique(y), [0.0, 1 / 0.75], rtol=1e-6)
    assert (y == y[:, :1]).all() and abs(y.mean() - 1) < 0.05
