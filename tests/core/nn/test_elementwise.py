"""Arithmetic of several tensors: values, gradients, ties, broadcasting."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np
import pytest

from clgraft import core
from clgraft.core import PointwiseProblem, ProblemError
from clgraft.core.nn import elementwise
from clgraft.core.nn.elementwise import BINARY, TIES, Combination
from clgraft.core.nn.formulas import assigned
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
    plain = run(core.context(), elementwise.sum_forward(SHAPE, count, dtype="float64"), numbered(x))["y0"]
    np.testing.assert_allclose(plain, sum(x), rtol=1e-13, atol=1e-14)
    scalars = {f"c{i}": i - 1.5 for i in range(count)}
    weighted = run(core.context(), elementwise.sum_forward(SHAPE, count, True, "float64"), numbered(x), scalars)["y0"]
    np.testing.assert_allclose(weighted, sum((i - 1.5) * x[i] for i in range(count)), rtol=1e-13, atol=1e-13)
    scaled = run(core.context(), elementwise.scale_forward(SHAPE, "float64"), {"x0": x[0]}, {"c0": -2.5})["y0"]
    np.testing.assert_array_equal(scaled, -2.5 * x[0])


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_products(count: int) -> None:
    x = tensors(count)
    x[-1][0, :4] = 0
    dy = np.random.default_rng(1).standard_normal(SHAPE)
    y = run(core.context(), elementwise.product_forward(SHAPE, count, "float64"), numbered(x))["y0"]
    np.testing.assert_allclose(y, np.prod(x, 0), rtol=1e-13)
    gradients = run(core.context(), elementwise.product_backward(SHAPE, count, "float64"), numbered([dy, *x]))
    for i in range(count):
        others = np.prod([x[j] for j in range(count) if j != i], 0)
        np.testing.assert_allclose(gradients[f"y{i}"], dy * others, rtol=1e-13)


@pytest.mark.parametrize("ties", TIES)
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_greatest(count: int, ties: str) -> None:
    x = tensors(count, ties=True)
    dy = np.random.default_rng(1).standard_normal(SHAPE)
    y = run(core.context(), elementwise.max_forward(SHAPE, count, ties, "float64"), numbered(x))["y0"]
    np.testing.assert_array_equal(y, np.max(x, 0))
    gradients = run(core.context(), elementwise.max_backward(SHAPE, count, ties, "float64"), numbered([dy, *x]))
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
    ("name", "a", "b"), [(name, a, b) for name in MEANING for a, b in (PAIRS if name == "multiply" else PAIRS[:1])]
)
def test_binary(name: str, a: tuple[int, ...], b: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    known = {"a": np.asarray(rng.random(a) + 0.5), "b": np.asarray(rng.random(b) + 0.5)}
    exact = MEANING[name](known["a"], known["b"])
    dy = rng.standard_normal(exact.shape)
    y = run(core.context(), elementwise.binary_forward(name, a, b, "float64"), {"x0": known["a"], "x1": known["b"]})[
        "y0"
    ]
    np.testing.assert_allclose(y, exact, rtol=1e-12)
    backward = elementwise.binary_backward(name, a, b, "float64")
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
        gradients = run(core.context(), elementwise.binary_backward(name, (20,), (20,)), numbered([3 * x, x, x]))
        np.testing.assert_array_equal(gradients["y0"], 3)
        np.testing.assert_array_equal(gradients["y1"], 0)


@pytest.mark.parametrize(
    ("call", "part"),
    [
        (lambda: elementwise.sum_forward((3,), 0), "0 inputs"),
        (lambda: elementwise.max_backward((3,), 2, "third"), "ties 'third'"),
        (lambda: elementwise.binary_forward("modulus", (3,), (3,)), "'modulus'"),
    ],
)
def test_wrong_calls_are_named(call: Callable[[], Any], part: str) -> None:
    with pytest.raises(ProblemError) as caught:
        call()
    assert str(caught.value).startswith("[eltwise] got ")
    assert part in str(caught.value)


def computed(text: str, *arrays: object, **scalars: float) -> dict[str, np.ndarray]:
    """Return what statements over x0, x1, ... assign, by the reference of the core."""
    given = [np.asarray(array, float) for array in arrays]
    problem = PointwiseProblem(tuple(a.shape for a in given), text, (), tuple(scalars), dtype="float64")
    return problem.reference(numbered(given), scalars)


def two(name: str, a: object, b: object, **scalars: float) -> np.ndarray:
    """Return a binary function's values."""
    return computed(f"real a = x0; real b = x1; {assigned('y0', BINARY[name].value)}", a, b, **scalars)["y0"]


NAN = np.nan
SPECIAL = [(1.0, NAN), (NAN, 1.0), (NAN, NAN), (0.0, -0.0), (-0.0, 0.0), (2.0, 1.0), (1.0, 2.0), (2.0, 2.0)]
QUESTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "equal": np.equal,
    "greater": np.greater,
    "greater_or_equal": np.greater_equal,
    "less": np.less,
    "less_or_equal": np.less_equal,
    "and": np.logical_and,
    "or": np.logical_or,
    "xor": np.logical_xor,
}


def test_every_binary_function_has_a_test() -> None:
    others = "add_multiple subtract_multiple fmod modulo remainder whole_quotient maximum_last minimum_last"
    assert set(BINARY) == {*MEANING, *QUESTIONS, *others.split()}


@pytest.mark.parametrize("name", QUESTIONS)
def test_questions(name: str) -> None:
    a, b = np.array([*SPECIAL, (0.0, 1.0), (0.0, 0.0)]).T
    np.testing.assert_array_equal(two(name, a, b), QUESTIONS[name](a, b))


def test_multiples_and_remainders() -> None:
    a, b = np.array([7.5, -7.5, 7.5, -7.5, 6, -6]), np.array([2, 2, -2, -2, 3, -3])
    np.testing.assert_array_equal(two("add_multiple", a, b, factor=2.5), a + 2.5 * b)
    np.testing.assert_array_equal(two("subtract_multiple", a, b, factor=2.5), a - 2.5 * b)
    np.testing.assert_array_equal(two("fmod", a, b), np.fmod(a, b))
    np.testing.assert_array_equal(two("modulo", a, b), np.mod(a, b))
    a, b = np.trunc([*a, 5]), np.array([*b, 0])
    np.testing.assert_array_equal(two("remainder", a, b)[:-1], np.mod(a[:-1], b[:-1]))
    np.testing.assert_array_equal(two("whole_quotient", a, b)[:-1], np.trunc(a[:-1] / b[:-1]))
    assert not two("remainder", a, b)[-1] and not two("whole_quotient", a, b)[-1]


def test_extremes_of_two_keep_nan_and_differ_in_who_wins() -> None:
    a, b = np.array(SPECIAL).T
    for name, exact in (("maximum", np.maximum), ("minimum", np.minimum)):
        first, last = two(name, a, b), two(f"{name}_last", a, b)
        np.testing.assert_array_equal(first, exact(a, b))
        np.testing.assert_array_equal(last, exact(a, b))
        zeros = (a == 0) & (b == 0)
        np.testing.assert_array_equal(np.signbit(first[zeros]), np.signbit(a[zeros]))
        np.testing.assert_array_equal(np.signbit(last[zeros]), np.signbit(b[zeros]))
    backward = elementwise.binary_backward("maximum", a.shape, a.shape, "float64")
    found = backward.reference(numbered([np.full(a.shape, 3.0), a, b]), {})
    np.testing.assert_array_equal(found["y0"], [0, 0, 0, 3, 3, 3, 0, 3])
    np.testing.assert_array_equal(found["y1"], [0, 0, 0, 0, 0, 0, 3, 0])


# x0, x1, x2; the greatest and the gradients' winners by each convention of ties
NANS = {
    (1.0, NAN, 0.0): {"first": (1.0, [0]), "second": (NAN, [1]), "all": (1.0, [0])},
    (NAN, 1.0, 0.0): {"first": (NAN, [0]), "second": (1.0, [1]), "all": (NAN, [])},
    (1.0, 1.0, 1.0): {"first": (1.0, [0]), "second": (1.0, [1]), "all": (1.0, [0, 1, 2])},
    (0.0, 1.0, 1.0): {"first": (1.0, [1]), "second": (1.0, [1]), "all": (1.0, [1, 2])},
    (0.0, 1.0, NAN): {"first": (1.0, [1]), "second": (1.0, [1]), "all": (1.0, [1])},
}


@pytest.mark.parametrize("ties", TIES)
def test_the_greatest_of_many_with_nan(ties: str) -> None:
    for values, expected in NANS.items():
        x = [np.array([value]) for value in values]
        y = elementwise.max_forward((1,), 3, ties, "float64").reference(numbered(x), {})["y0"]
        backward = elementwise.max_backward((1,), 3, ties, "float64")
        gradients = backward.reference(numbered([np.array([2.0]), *x]), {})
        np.testing.assert_array_equal(y, [expected[ties][0]], err_msg=str(values))
        assert [i for i in range(3) if gradients[f"y{i}"] == 2] == expected[ties][1], values


def gradients_of(combination: Combination, values: dict[str, np.ndarray], dy: np.ndarray) -> dict[str, np.ndarray]:
    """Return the gradients that a combination states."""
    loads = "".join(f"real {name} = x{i}; " for i, name in enumerate([*values, "dy"]) if name != f"x{i}")
    text = combination.backward()
    for i, name in enumerate(combination.gradients):
        text = text.replace(f"d{name} =", f"y{i} =")
    found = computed(loads + text, *values.values(), dy)
    return {name: found[f"y{i}"] for i, name in enumerate(combination.gradients)}


COMBINATIONS = {
    "weighted": (elementwise.total([1.0, -2.5, 0.5]), lambda x0, x1, x2: x0 - 2.5 * x1 + 0.5 * x2),
    "product": (elementwise.product(3), lambda x0, x1, x2: x0 * x1 * x2),
    "shared product": (elementwise.product(3, shared=True), lambda x0, x1, x2: x0 * x1 * x2),
    "scale": (elementwise.affine(False), lambda x, g: x * g),
    "scale and shift": (elementwise.affine(True), lambda x, g, b: x * g + b),
    "shift": (elementwise.shifted(), lambda x, b: x + b),
}


@pytest.mark.parametrize("name", COMBINATIONS)
def test_combinations(name: str) -> None:
    combination, exact = COMBINATIONS[name]
    rng = np.random.default_rng(0)
    names = exact.__code__.co_varnames
    values = {n: rng.standard_normal(9) for n in names}
    loads = "".join(f"real {n} = x{i}; " for i, n in enumerate(names) if n != f"x{i}")
    y = computed(loads + assigned("y0", combination.value), *values.values())["y0"]
    np.testing.assert_allclose(y, exact(**values), rtol=1e-12)
    dy, h = rng.standard_normal(9), 1e-6
    found = gradients_of(combination, values, dy)
    for n in names:
        up, down = (exact(**{**values, n: values[n] + s * h}) for s in (1, -1))
        np.testing.assert_allclose(found[n], dy * (up - down) / (2 * h), rtol=1e-7, atol=1e-9)


def test_means_extremes_and_limits() -> None:
    x = [np.array([1.0, NAN, 3.0]), np.array([2.0, 1.0, NAN]), np.array([0.0, 5.0, 1.0])]
    np.testing.assert_array_equal(computed(assigned("y0", elementwise.mean(3)), *x)["y0"], np.mean(x, 0))
    for name, exact in (("maximum_last", np.maximum), ("minimum_last", np.minimum)):
        for count in (1, 2, 3):
            got = computed(assigned("y0", elementwise.extremum(count, name)), *x[:count])["y0"]
            np.testing.assert_array_equal(got, exact.reduce(x[:count]))
    given = np.array([-2.0, 0.5, 2.0, NAN])
    for low, high in ((-1, 1), (None, 1), (-1, None), (None, None), (1, -1)):
        limits = [limit for limit in (low, high) if limit is not None]
        text = assigned("y0", elementwise.limited(low is not None, high is not None))
        expected = np.clip(given, low, high) if limits else given
        np.testing.assert_array_equal(computed(text, given, *limits)["y0"], expected)
