"""Dropout and random slopes: the generator word by word, rates and independence by statistics that can fail."""

from __future__ import annotations

import math

import numpy as np
import pytest

from clgraft import core
from clgraft.core import ProblemError
from clgraft.core.operators.dropout.reference import WORD, philox, uniform
from tests.core.pointwise_checks import MACHINES, planning_for
from tests.problem_sets import problem_lines

KEY = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)
SIGMAS = 5  # one in two million sound runs would fail; runs are the same every time
PROBLEMS = problem_lines("dropout")
DTYPES = ("float32", "float16", "bfloat16", "float64")
ROUNDING = {"float32": 2e-7, "float16": 1e-3, "bfloat16": 4e-3, "float64": 1e-15}
WIDTHS = ("vectors of 8", "vectors of 16")  # of which one or two are computed side by side


def words(key=KEY) -> np.ndarray:
    return np.array(key, np.uint32).view(np.int32)


def run(context, problem, key=KEY, accumulate_on=None, **given):
    scalars = {name: given.pop(name) for name in problem.scalars()}
    argument = problem.arguments()[-1]
    y = np.full(argument.shape, np.nan, argument.dtype) if accumulate_on is None else accumulate_on.copy()
    given[argument.name] = y if accumulate_on is None else core.accumulate(y)
    context.plan(problem).run(scalars, key=words(key), **given)
    return y


def keep(rate: float) -> dict[str, float]:
    return {"keep": rate, "scale": 1 / rate if rate else 0.0}


def masks(context, shape, rate=0.5, key=KEY, mask=()) -> np.ndarray:
    """Which elements are kept."""
    problem = core.DropoutProblem("forward", "dropout", shape, mask)
    return run(context, problem, key, x=np.ones(shape, np.float32), **keep(rate)) != 0


def test_the_generator_gives_its_authors_known_answers():
    assert [int(v) for v in philox((0, 0, 0, 0), (0, 0))] == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    digits = ((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0))
    assert [int(v) for v in philox(*digits)] == [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]


@pytest.mark.parametrize(
    ("dtype", "machine"), [*((d, m) for d in DTYPES for m in (*MACHINES[:2], *WIDTHS)), ("float32", MACHINES[2])]
)
def test_numbers_are_the_generators(dtype, machine):
    for count in (1, 15, 63, 64, 65, 127, 128, 129, 192, 4099, 8192 + 64):
        problem = core.DropoutProblem("forward", "rrelu", (count,), dtype=dtype)
        with planning_for(machine) as context:
            got = run(context, problem, x=np.full(count, -1, problem.arguments()[0].dtype), low=0.0, high=1.0)
        np.testing.assert_allclose(-got.astype("f8"), uniform(count, KEY), rtol=ROUNDING[dtype], atol=6e-8)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(3, 5, 7, 11), (1,), (2, 64), (0, 4), ()], ids=str)
def test_dropout_matches_float64(context, rng, dtype, shape):
    x = rng.standard_normal(shape).astype(dtype)
    old = rng.standard_normal(shape).astype(dtype)
    factor = np.where(uniform(x.size, KEY) < np.float32(0.7), 1 / 0.7, 0).reshape(shape)
    for direction, name in (("forward", "x"), ("backward", "dy")):
        problem = core.DropoutProblem(direction, "dropout", shape, dtype=dtype)
        expected = x.astype("f8") * factor
        np.testing.assert_allclose(run(context, problem, **{name: x}, **keep(0.7)), expected, rtol=ROUNDING[dtype])
        got = run(context, problem, accumulate_on=old, **{name: x}, **keep(0.7))
        np.testing.assert_allclose(got, expected + old.astype("f8"), rtol=ROUNDING[dtype], atol=4 * ROUNDING[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
def test_random_slopes_match_float64(context, rng, dtype):
    shape = (3, 5, 7, 11)
    x, dy = (rng.standard_normal(shape).astype(dtype) for _ in range(2))
    x.flat[:3] = 0, -0.0, np.nan
    slope = (0.125 + (0.334 - 0.125) * uniform(x.size, KEY)).reshape(shape)
    factor = np.where(x.astype("f8") > 0, 1, slope)
    forward = core.DropoutProblem("forward", "rrelu", shape, dtype=dtype)
    tolerance = {"rtol": 2 * ROUNDING[dtype], "atol": 1e-7 if dtype == "float32" else 0}
    np.testing.assert_allclose(run(context, forward, x=x, low=0.125, high=0.334), factor * x, **tolerance)
    backward = forward.with_direction("backward")
    got = run(context, backward, x=x, dy=dy, low=0.125, high=0.334)
    np.testing.assert_allclose(got, factor * dy, **tolerance)


@pytest.mark.parametrize("mask", [(1, 5, 1, 1), (4, 5, 1, 1), (1, 1, 6, 7), (4, 1, 6, 1)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_elements_share_a_number_along_axes(context, rng, mask, dtype):
    shape = (4, 5, 6, 7)
    x, old = (rng.standard_normal(shape).astype(dtype) for _ in range(2))
    factor = np.where(uniform(math.prod(mask), KEY).reshape(mask) < np.float32(0.6), 1 / 0.6, 0)
    problem = core.DropoutProblem("forward", "dropout", shape, mask, dtype)
    np.testing.assert_allclose(run(context, problem, x=x, **keep(0.6)), x * factor, rtol=2e-7)
    got = run(context, problem, accumulate_on=old, x=x, **keep(0.6))
    np.testing.assert_allclose(got, x * factor + old, rtol=2e-6, atol=2e-6)


def test_in_place(context, rng):
    x = rng.standard_normal((3, 1031)).astype("f4")
    problem = core.DropoutProblem("forward", "dropout", x.shape)
    expected = run(context, problem, x=x, **keep(0.5))
    context.plan(problem).run(keep(0.5), x=x, key=words(), y=x)
    assert np.array_equal(x, expected)


def test_rates_of_nothing_and_of_all(context):
    assert masks(context, (1000,), 1.0).all()
    assert not masks(context, (1000,), 0.0).any()


def test_bfloat16_keeps_all_normal_numbers(context):
    """Also those that a rounding by whole numbers or by the processor's instruction would lose: NaN, the ends."""
    bits = np.array([0x7FC0, 0x7FFF, 0xFFFF, 0x7F80, 0xFF80, 0x7F7F, 0x0080, 0x8080, 0x8000, 0x3F81] * 32, np.uint16)
    problem = core.DropoutProblem("forward", "dropout", bits.shape, dtype="bfloat16")
    x = bits.view(problem.arguments()[0].dtype)
    got = run(context, problem, x=x, keep=1.0, scale=1.0)
    np.testing.assert_array_equal(got.astype("f4"), x.astype("f4"))


def test_special_values_are_multiplied(context):
    x = np.array([np.nan, np.inf, -np.inf, -0.0] * 16, "f4")
    problem = core.DropoutProblem("forward", "dropout", x.shape)
    with np.errstate(invalid="ignore"):
        expected = x * np.where(uniform(64, KEY) < 0.5, np.float32(2), np.float32(0))
    np.testing.assert_array_equal(run(context, problem, x=x, **keep(0.5)), expected)


def assert_rate(kept: np.ndarray, rate: float, what: str) -> None:
    """The share of True is within the bounds of the binomial distribution."""
    sigma = math.sqrt(rate * (1 - rate) / kept.size)
    assert abs(kept.mean() - rate) < SIGMAS * sigma, f"{what}: {kept.mean()} for {rate}, sigma {sigma}"


@pytest.mark.parametrize("rate", [0.5, 0.8, 0.99, 0.001])
def test_the_rate_is_kept(context, rate):
    kept = masks(context, (1 << 20,), rate)
    assert_rate(kept, rate, "all")
    for part in range(4):
        assert_rate(kept[part::4], rate, f"every fourth from {part}")
        assert_rate(kept.reshape(-1, 4, 16)[:, part], rate, f"word {part}")


def test_the_mean_is_kept(context):
    shape = (1 << 20,)
    problem = core.DropoutProblem("forward", "dropout", shape)
    y = run(context, problem, x=np.ones(shape, "f4"), **keep(0.3))
    assert abs(y.mean(dtype="f8") - 1) < SIGMAS * math.sqrt((1 / 0.3 - 1) / y.size)


@pytest.mark.parametrize("lag", [1, 2, 3, 4, 15, 16, 17, 48, 63, 64, 65, 1024, 4096])
def test_places_are_independent(context, lag):
    kept = masks(context, (1 << 20,))
    assert_rate(kept[:-lag] == kept[lag:], 0.5, f"elements {lag} apart")


@pytest.mark.parametrize("word", range(4), ids=["seed", "seed-high", "stream", "draw"])
def test_keys_are_independent(context, word):
    first = masks(context, (1 << 18,))
    for step in (1, 2, 3, 1 << 16):
        key = list(KEY)
        key[word] = (key[word] + step) % 2**32
        other = masks(context, (1 << 18,), key=tuple(key))
        assert_rate(first == other, 0.5, f"word {word} and {step} more")


def test_channels_and_images_are_independent(context):
    kept = masks(context, (16, 64, 7, 7)).reshape(16 * 64, 49).astype("f8")
    correlation = np.corrcoef(kept)[np.triu_indices(len(kept), 1)]
    # without correlation, r * sqrt(n) of a pair is about normal: its mean square over all pairs is n / (n - 1) / n
    expected, pairs = 1 / 48, len(correlation)
    assert abs((correlation**2).mean() - expected) < SIGMAS * expected * math.sqrt(2 / pairs) * 2


def test_bytes_of_the_numbers_are_uniform(context):
    count = 1 << 20
    problem = core.DropoutProblem("forward", "rrelu", (count,))
    numbers = (-run(context, problem, x=np.full(count, -1, "f4"), low=0.0, high=1.0) * 2**24).astype(np.uint32)
    for shift in (0, 8, 16):
        found = np.bincount(numbers >> shift & 255, minlength=256)
        chi2 = ((found - count / 256) ** 2 / (count / 256)).sum()
        assert abs(chi2 - 255) < SIGMAS * math.sqrt(2 * 255), f"bits {shift} to {shift + 7}: {chi2}"


def test_a_poor_generator_fails_these_tests():
    """A linear congruence passes for the rate and fails for independence."""
    numbers = (np.arange(1 << 20, dtype=np.uint64) * np.uint64(1664525)) & WORD
    kept = numbers < np.uint64(1 << 31)
    assert_rate(kept, 0.5, "all")
    with pytest.raises(AssertionError):
        assert_rate(kept[:-1024] == kept[1024:], 0.5, "elements 1024 apart")


@pytest.mark.parametrize("name", PROBLEMS)
def test_text_is_read_back(name):
    assert str(core.parse(PROBLEMS[name])) == PROBLEMS[name]


@pytest.mark.parametrize("machine", MACHINES[:3])
def test_any_problem_runs_on_any_machine(machine, rng):
    for text in PROBLEMS.values():
        problem = core.parse(text)
        given = {
            a.name: rng.standard_normal(a.shape).astype(a.dtype) for a in problem.arguments() if a.dtype != "int32"
        }
        y = given.popitem()[1]
        rate = keep(0.5) if problem.operator == "dropout" else {"low": 0.25, "high": 0.25}
        with planning_for(machine) as context:
            y = run(context, problem, **given, **rate)
        source = given["dy" if problem.direction == "backward" else "x"]
        if problem.operator == "rrelu":
            expected = np.where(given["x"] > 0, source, np.float32(0.25) * source)
        else:
            drawn = uniform(math.prod(problem.mask), KEY).reshape(problem.mask)
            expected = source * np.where(drawn < 0.5, 2, 0)
        np.testing.assert_allclose(y, expected, rtol=ROUNDING[problem.dtype], err_msg=text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dropout forward", "expected a word x"),
        ("dropout sideways x[3]", "got word 'sideways'"),
        ("dropout forward x[3] x[3]", "got word"),
        ("dropout forward x[8,3] mask[2,3]", "got mask"),
        ("dropout forward x[8,3] mask[3]", "got mask"),
        ("dropout forward rrelu x[8,3] mask[1,3]", "for rrelu"),
    ],
)
def test_errors_name_what_does_not_fit(text, message):
    with pytest.raises(ProblemError, match=r"\[dropout\] .*" + message.replace("[", r"\[")):
        core.parse(text)
