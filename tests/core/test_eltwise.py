"""Arithmetic of several tensors: values, gradients, ties, broadcasting."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np
import pytest

from clgraft import core
from clgraft.core import ProblemError
from clgraft.core.operators.pointwise.formulas import eltwise
from clgraft.core.operators.pointwise.formulas.eltwise import BINARY, TIES
from tests.core.pointwise_checks import run

SHAPE = (3, 37)


def tensors(count: int, *, ties: bool = False) -> list[np.ndarray]:
    rng = np.random.default_rng(count)
    if ties:
        return [rng.integers(0, 3, SHAPE).astype("float64") for _ in range(count)]
    return [rng.standard_normal(SHAPE) for _ in range(count)]


def numbered(arrays: list[np.ndarray]) -> dict[str, np.ndarray]:
    return {f"x{i}": array for i, array in enumerate(arrays)}


@pytest.mark.parametrize("count", [1, 2, 3, 9])
def test_sums(count: int) -> None:
    x = tensors(count)
    plain = run(core.context(), eltwise.sum_forward(SHAPE, count, dtype="float64"), numbered(x))["y0"]
    np.testing.assert_allclose(plain, sum(x), rtol=1e-13, atol=1e-14)
    scalars = {f"c{i}": i - 1.5 for i in range(count)}
    weighted = run(core.context(), eltwise.sum_forward(SHAPE, count, True, "float64"), numbered(x), scalars)["y0"]
    np.testing.assert_allclose(weighted, sum((i - 1.5) * x[i] for i in range(count)), rtol=1e-13, atol=1e-13)
    scaled = run(core.context(), eltwise.scale_forward(SHAPE, "float64"), {"x0": x[0]}, {"c0": -2.5})["y0"]
    np.testing.assert_array_equal(scaled, -2.5 * x[0])


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_products(count: int) -> None:
    x = tensors(count)
    x[-1][0, :4] = 0
    dy = np.random.default_rng(1).standard_normal(SHAPE)
    y = run(core.context(), eltwise.product_forward(SHAPE, count, "float64"), numbered(x))["y0"]
    np.testing.assert_allclose(y, np.prod(x, 0), rtol=1e-13)
    gradients = run(core.context(), eltwise.product_backward(SHAPE, count, "float64"), numbered([dy, *x]))
    for i in range(count):
        others = np.prod([x[j] for j in range(count) if j != i], 0)
        np.testing.assert_allclose(gradients[f"y{i}"], dy * others, rtol=1e-13)


@pytest.mark.parametrize("ties", TIES)
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_greatest(count: int, ties: str) -> None:
    x = tensors(count, ties=True)
    dy = np.random.default_rng(1).standard_normal(SHAPE)
    y = run(core.context(), eltwise.max_forward(SHAPE, count, "float64"), numbered(x))["y0"]
    np.testing.assert_array_equal(y, np.max(x, 0))
    gradients = run(core.context(), eltwise.max_backward(SHAPE, count, ties, "float64"), numbered([dy, *x]))
    at_top = np.array([array == y for array in x])
    if ties == "all":
        winners = at_top
    else:
        first = at_top.argmax(0)
        if ties == "second" and count > 1:
            first = np.where(at_top[0] & at_top[1], 1, first)
        winners = np.array([first == i for i in range(count)])
    for i in range(count):
        np.testing.assert_array_equal(gradients[f"y{i}"], np.where(winners[i], dy, 0))


MEANING: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "power": np.power,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "hypot": np.hypot,
}


PAIRS = [((2, 3, 20), (3, 1)), ((5, 17), (5, 17)), ((3, 1, 4), (5, 1)), ((), (40,)), ((1, 3), (3,))]


@pytest.mark.parametrize(
    ("name", "a", "b"), [(name, a, b) for name in BINARY for a, b in (PAIRS if name == "multiply" else PAIRS[:1])]
)
def test_binary(name: str, a: tuple[int, ...], b: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    known = {"a": np.asarray(rng.random(a) + 0.5), "b": np.asarray(rng.random(b) + 0.5)}
    exact = MEANING[name](known["a"], known["b"])
    dy = rng.standard_normal(exact.shape)
    y = run(core.context(), eltwise.binary_forward(name, a, b, "float64"), {"x0": known["a"], "x1": known["b"]})["y0"]
    np.testing.assert_allclose(y, exact, rtol=1e-12)
    backward = eltwise.binary_backward(name, a, b, "float64")
    reads = [known[read] for read in BINARY[name].reads]
    gradients = run(core.context(), backward, numbered([dy, *reads]))
    h = 1e-6
    for side, result in (("a", gradients["y0"]), ("b", gradients["y1"])):
        direction = rng.standard_normal(known[side].shape)
        up, down = ({**known, side: known[side] + s * h * direction} for s in (1, -1))
        change = ((MEANING[name](*up.values()) - MEANING[name](*down.values())) * dy).sum() / (2 * h)
        np.testing.assert_allclose((result * direction).sum(), change, rtol=1e-6, atol=1e-7)
        assert result.shape == known[side].shape


def test_ties_go_to_the_left() -> None:
    x = np.ones(20, "float32")
    for name in ("maximum", "minimum"):
        gradients = run(core.context(), eltwise.binary_backward(name, (20,), (20,)), numbered([3 * x, x, x]))
        np.testing.assert_array_equal(gradients["y0"], 3)
        np.testing.assert_array_equal(gradients["y1"], 0)


@pytest.mark.parametrize(
    ("call", "part"),
    [
        (lambda: eltwise.sum_forward((3,), 0), "0 inputs"),
        (lambda: eltwise.max_backward((3,), 2, "third"), "ties 'third'"),
        (lambda: eltwise.binary_forward("modulo", (3,), (3,)), "'modulo'"),
    ],
)
def test_wrong_calls_are_named(call: Callable[[], Any], part: str) -> None:
    with pytest.raises(ProblemError) as caught:
        call()
    assert str(caught.value).startswith("[eltwise] got ")
    assert part in str(caught.value)
