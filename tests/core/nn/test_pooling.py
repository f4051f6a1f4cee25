"""Pooling: how windows are padded, rounded and counted, with gradients; windows with holes."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from clgraft import core
from clgraft.core.graph.reference import evaluate
from clgraft.core.nn import pooling, shapes
from clgraft.core.nn.builder import Build, Tensor
from tests.adapted_windows import adapted
from tests.core.nn.functions import built, expect_like


def image(*shape: int) -> np.ndarray:
    """Return numbers that are far enough apart for differences."""
    rng = np.random.default_rng(5)
    return (rng.permutation(math.prod(shape)).reshape(shape) / 16 - 3).astype(np.float32)


def windows(
    x: np.ndarray,
    operator: str,
    kernel: Any,
    stride: Any,
    pad: Any,
    end: Any,
    counts: Any,
    count_padding: bool,
    dilate: Any,
) -> np.ndarray:
    """Compute pooling of two axes window by window."""
    found = np.zeros((*x.shape[:2], *counts))
    for place in itertools.product(*map(range, counts)):
        inside, within = [], 0
        for tap in itertools.product(*map(range, kernel)):
            at = [p * s - b + t * d for p, s, b, t, d in zip(place, stride, pad, tap, dilate)]
            within += all(-b <= a < i + e for a, b, i, e in zip(at, pad, x.shape[2:], end))
            if all(0 <= a < i for a, i in zip(at, x.shape[2:])):
                inside.append(x[:, :, at[0], at[1]])
        values = np.array(inside)
        if operator == "max":
            found[:, :, place[0], place[1]] = values.max(0)
        else:
            found[:, :, place[0], place[1]] = values.sum(0) / (within if count_padding else len(inside))
    return found


@pytest.mark.parametrize("operator", ["max", "average"])
@pytest.mark.parametrize(("rounding", "count"), [("floor", 3), ("ceil", 4), ("ceil_inside", 4)])
@pytest.mark.parametrize("count_padding", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_windows_and_their_rounding(operator, rounding, count, count_padding, training):
    def function(build: Build, value: Tensor) -> Tensor:
        given = {"stride": (2, 2), "pad": (1, 1), "pad_end": (0, 0), "rounding": rounding}
        return pooling.pool(build, value, operator, (3, 2), count_padding=count_padding, **given)

    def definition(value: np.ndarray) -> np.ndarray:
        sizes = (3, 2), (2, 2), (1, 1), (0, 0), (count, count)
        return windows(value, operator, *sizes, count_padding, (1, 1))

    expect_like(function, definition, {"x": image(2, 3, 7, 6)}, training=training)


def test_maxima_are_kept_by_their_places_in_training_alone():
    given = {"x": image(1, 1, 4, 4), "dy0": np.ones((1, 1, 2, 2), np.float32)}
    for training, direction in ((True, "forward_argmax"), (False, "forward")):
        found = built(lambda build, x: pooling.pool(build, x, "max", (2, 2), stride=(2, 2)), given, training=training)
        assert found.passes.forward[0].problem.direction == direction


def test_whole_images():
    x = image(2, 3, 4, 5)
    for operator, result in (("max", x.max((2, 3))), ("average", x.mean((2, 3)))):
        for function in (pooling.whole, pooling.pool):
            wide = result.reshape(2, 3, 1, 1).astype(np.float64)
            found = built(lambda build, value, f=function, o=operator: f(build, value, o), {"x": x})
            assert found.passes.outputs[0].shape == wide.shape
    axes = (2, 3)
    expect_like(lambda b, v: pooling.whole(b, v, "average"), lambda v: v.mean(axes, keepdims=True), {"x": x})
    expect_like(lambda b, v: pooling.pool(b, v, "average"), lambda v: v.mean(axes, keepdims=True), {"x": x})
    expect_like(lambda b, v: pooling.whole(b, v, "lp"), lambda v: np.sqrt((v * v).sum(axes, keepdims=True)), {"x": x})
    expect_like(
        lambda b, v: pooling.whole(b, v, "lp", 3),
        lambda v: np.cbrt((np.abs(v) ** 3).sum(axes, keepdims=True)),
        {"x": x},
        near=1e-4,
    )


@pytest.mark.parametrize("operator", ["max", "average"])
@pytest.mark.parametrize("count_padding", [True, False])
@pytest.mark.parametrize(("ceil", "counts"), [(False, (2, 3)), (True, (3, 3))])
def test_windows_with_holes(operator, count_padding, ceil, counts):
    sizes = {"stride": (2, 1), "dilate": (2, 3), "pad": (1, 0), "pad_end": (0, 0)}

    def function(build: Build, value: Tensor) -> Tensor:
        return pooling.pool_with_holes(build, value, operator, (3, 2), ceil=ceil, count_padding=count_padding, **sizes)

    def definition(value: np.ndarray) -> np.ndarray:
        return windows(value, operator, (3, 2), (2, 1), (1, 0), (0, 0), counts, count_padding, (2, 3))

    expect_like(function, definition, {"x": image(1, 2, 7, 6)})


@pytest.mark.parametrize(("upper", "expected"), [(True, ((0, 1), (1, 1))), (False, ((1, 1), (0, 1)))])
def test_padding_for_as_many_windows_as_strides(upper, expected):
    assert pooling.same_pads((8, 7), (3, 3), (2, 1), upper=upper) == expected
    assert pooling.same_pads((3,), (1,), (2,), upper=upper) == ((0,), (0,))


def test_padding_adds_and_cuts():
    expect_like(
        lambda build, x: shapes.padded(build, x, (0, 1, -1), (2, 0, 0), 0.5),
        lambda x: np.pad(x[:, :, 1:], ((0, 2), (1, 0), (0, 0)), constant_values=0.5),
        {"x": image(2, 3, 4)},
    )


def test_places_of_maxima():
    def function(build: Build, x: Tensor) -> tuple[Tensor, ...]:
        return pooling.pool_with_places(build, x, (2, 2), stride=(2, 2))

    x = image(1, 2, 4, 6)
    found = built(function, {"x": x, "dy0": np.ones((1, 2, 2, 3), np.float32)})
    assert list(found.passes.incoming) == [found.outputs[0]]
    values = evaluate(found.graph, found.given({"x": x, "dy0": np.ones((1, 2, 2, 3), np.float32)}))
    y, places = (values[name] for name in found.outputs)
    np.testing.assert_array_equal(
        np.take_along_axis(x.reshape(1, 2, 24), places.reshape(1, 2, 6).astype(int), 2), y.reshape(1, 2, 6)
    )


@pytest.mark.parametrize("columns_first", [False, True])
def test_places_in_the_whole_tensor(columns_first: bool) -> None:
    def function(build: Build, x: Tensor) -> Tensor:
        _, found = pooling.pool_with_places(build, x, (2, 3), stride=(2, 3))
        return pooling.places_in_tensor(build, found, (4, 6), "float32", columns_first=columns_first)

    x = image(2, 3, 4, 6)
    found = built(function, {"x": x}, training=False)
    values = evaluate(found.graph, found.given({"x": x}))[found.outputs[0]].astype(int)
    order = x.transpose(0, 1, 3, 2) if columns_first else x
    boxes = x.reshape(2, 3, 2, 2, 2, 3).max((3, 5))
    np.testing.assert_array_equal(order.reshape(-1)[values.reshape(-1)], boxes.reshape(-1))


def test_places_of_halves_are_exact() -> None:
    def function(build: Build, x: Tensor) -> Tensor:
        return pooling.pool_with_places(build, x, (2, 2), stride=(2, 2))[1]

    x = np.zeros((1, 1, 60, 60), np.float16)
    x[0, 0, 1::2, 1::2] = 1
    found = built(function, {"x": x}, training=False)
    got = core.context().compile(found.graph).run(found.given({"x": x}))[found.outputs[0]]
    rows, columns = np.mgrid[1:60:2, 1:60:2]
    np.testing.assert_array_equal(got.reshape(30, 30), rows * 60 + columns)


@pytest.mark.parametrize("indices", [False, True])
@pytest.mark.parametrize("keep_nan", [False, True])
def test_not_a_number_in_windows_of_adapted_sizes(keep_nan: bool, indices: bool) -> None:
    x = image(1, 2, 7, 9)
    x[0, 0, 2, 3] = x[0, 1, 6] = np.nan
    keep, arrays = {"keep_nan": keep_nan, "indices": indices}, {"x": x, "dy0": np.zeros((1, 2, 3, 4), np.float32)}
    found = built(lambda build, v: pooling.adaptive_max_pool(build, v, (3, 4), **keep), arrays, training=False)
    got = core.context().compile(found.graph).run(found.given(arrays))
    with np.errstate(invalid="ignore"):
        y, index = adapted(x if keep_nan else np.nan_to_num(x, nan=-np.inf), (3, 4))
    assert np.isnan(y).any() == keep_nan
    for name, right in zip(found.outputs, (y, np.where(np.isnan(y), -1, index))):
        np.testing.assert_array_equal(got[name].reshape(right.shape), right)


ADAPTED = [((7,), (3,)), ((5,), (8,)), ((9, 7), (4, 5)), ((8, 6), (3, 2)), ((6, 6), (3, 2)), ((4, 3, 5), (3, 2, 4))]


@pytest.mark.parametrize(("size", "sizes"), ADAPTED)
def test_windows_of_adapted_sizes(size, sizes):
    x = image(2, 3, *size)
    expect_like(
        lambda build, value: pooling.adaptive_max_pool(build, value, sizes)[0], lambda v: adapted(v, sizes)[0], {"x": x}
    )


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("size", "sizes"), ADAPTED)
def test_places_in_windows_of_adapted_sizes(size, sizes, dtype):
    """Equal numbers show that the first counts, in the indices and in both forms of the gradient."""
    x = np.random.default_rng(1).integers(0, 3, (2, 2, *size)).astype(dtype)
    y, index = adapted(x, sizes)
    dy = np.arange(1, 1 + y.size).reshape(y.shape).astype(dtype)
    expected = np.zeros((4, math.prod(size)), dtype)
    for plane, at, value in zip(expected, index.reshape(4, -1), dy.reshape(4, -1)):
        np.add.at(plane, at, value)

    def both(build: Build, value: Tensor, known: Tensor, incoming: Tensor) -> tuple[Tensor, ...]:
        again = pooling.adaptive_max_pool_gradient(build, incoming, value, known)
        return (*pooling.adaptive_max_pool(build, value, sizes, indices=True), build.without_gradient(again))

    found = built(both, {"x": x, "known": y.astype(dtype), "incoming": dy, "dy0": dy})
    given = found.given({"x": x, "known": y.astype(dtype), "incoming": dy, "dy0": dy})
    got = core.context().compile(found.graph).run(given)
    names = [*found.outputs, found.passes.found["x"]]
    assert list(found.passes.incoming) == names[:1]
    for name, right in zip(names, (y, index, expected, expected)):
        np.testing.assert_array_equal(got[name].reshape(right.shape), right, err_msg=name)


def test_equal_windows_are_an_ordinary_pooling():
    x = image(1, 2, 6, 8)
    found = built(
        lambda build, value: pooling.adaptive_max_pool(build, value, (3, 4)), {"x": x, "dy0": x[..., ::2, ::2]}
    )
    (node,) = found.passes.forward
    assert node.problem == core.parse("pool forward_argmax max n1 c2 ih6 iw8 kh2 kw2 sh2 sw2")


@pytest.mark.parametrize(("sizes", "part"), [((3,), "2 numbers"), ((3, 0), "from 1"), ((3, 5000), "at most 4096")])
def test_sizes_that_cannot_be_adapted_to(sizes, part):
    build = Build()
    with pytest.raises(core.ProblemError, match=part):
        pooling.adaptive_max_pool(build, build.input("x", (1, 1, 6, 5001)), sizes)


def test_origins_of_large_axes_are_exact():
    """The index of an axis, as the core computes it, against whole numbers."""
    size, count = 6007, 4096
    x = np.arange(size, dtype=np.float32).reshape(1, 1, size)
    expected = -(-np.arange(1, count + 1) * size // count) - 1
    found = built(
        lambda build, value: pooling.adaptive_max_pool(build, value, (count,), indices=True), {"x": x}, training=False
    )
    got = core.context().compile(found.graph).run({**found.given({"x": x, "dy0": expected.astype(np.float32)})})
    for name in found.outputs:
        np.testing.assert_array_equal(got[name].reshape(-1), expected)
