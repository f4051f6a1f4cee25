"""Interpolation against exact weights in float64."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from clgraft import core
from clgraft.core import ProblemError
from clgraft.core.operators.interpolation import InterpolationProblem, elements
from clgraft.core.operators.interpolation.problem import COORDINATES, METHODS, ROUNDINGS
from clgraft.core.operators.interpolation.reference import weights
from clgraft.core.session.context import Context
from tests.core.pointwise_checks import MACHINES, ROUNDING, planning_for, run
from tests.problem_sets import problem_lines

LINES = problem_lines("interpolation")
DIRECTIONS = ("forward", "backward")


def parse(line: str, direction: str) -> InterpolationProblem:
    problem = core.parse(line.replace("interpolate", f"interpolate {direction}", 1))
    assert isinstance(problem, InterpolationProblem) and core.parse(str(problem)) == problem
    return problem


def check(problem: InterpolationProblem, got: np.ndarray, given: dict[str, np.ndarray]) -> None:
    """Hold a result to the roundings of its sum; nearest pixels to none."""
    (exact,) = problem.reference(given).values()
    assert got.shape == exact.shape
    if problem.method == "nearest" and problem.direction == "forward":
        np.testing.assert_array_equal(got, exact)
        return
    (bound,) = problem.reference({name: np.abs(value) for name, value in given.items()}).values()
    arithmetic = ROUNDING["float64" if problem.dtype == "float64" else "float32"]
    allowed = (problem.terms + 8) * arithmetic * bound + 2 * ROUNDING[problem.dtype] * np.abs(exact) + 2.0**-25
    wrong = np.argwhere(~(np.abs(got.astype(np.float64) - exact) <= allowed))
    assert not len(wrong), f"{len(wrong)} of {exact.size} elements wrong, first at {wrong[0]}"


@cache
def context_of_wide_plans() -> Context:
    """Return a context whose plans no other test sees."""
    return Context.on(None)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", ["twice", "down-nearest", "volume", "half"])
def test_wide_indices(name: str, direction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elements, "SMALL", 0)
    problem = parse(LINES[name], direction)
    given, output = problem.sample(np.random.default_rng(0)), problem.arguments()[-1]
    for algorithm in ("elements", "rows") if core.context().device.is_cpu else ("elements",):
        got = np.full(output.shape, np.nan, output.dtype)
        context_of_wide_plans().plan(problem, algorithm).run(**given, **{output.name: got})
        check(problem, got, given)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("seed", range(12))
def test_random_problems(seed: int, direction: str) -> None:
    rng = np.random.default_rng(seed)
    ndim = int(rng.integers(1, 4))
    sizes = [tuple(int(v) for v in rng.integers(1, 30 if ndim < 3 else 9, ndim)) for _ in range(2)]
    problem = InterpolationProblem(
        direction=direction,
        method=str(rng.choice(METHODS)),
        batch=int(rng.integers(1, 3)),
        channels=int(rng.integers(1, 4)),
        in_size=sizes[0],
        out_size=sizes[1],
        coordinates=str(rng.choice(COORDINATES)),
        rounding=str(rng.choice(ROUNDINGS)),
    )
    assert core.parse(str(problem)) == problem
    given = problem.sample(rng)
    (got,) = run(core.context(), problem, given).values()
    check(problem, got, given)


def test_readers_cover_every_weight() -> None:
    """The gradients of all sizes up to 12 in all ways: their sum is the number of outputs, which each give 1 away."""
    context, count = core.context(), 0
    for method, coordinates, rounding in [("linear", c, "prefer_floor") for c in COORDINATES] + [
        ("nearest", c, r) for c in COORDINATES for r in ROUNDINGS
    ]:
        # height and width cover two pairs of sizes at a time; the program is the same for all of them
        for a, b in [(1, 1), (1, 7), (7, 1), (2, 12), (12, 2), (5, 7), (7, 5), (3, 9), (9, 3), (6, 6), (11, 12)]:
            problem = InterpolationProblem("backward", method, 1, 1, (a, b), (b, a), coordinates, rounding)
            (dx,) = run(context, problem, {"dy": np.ones((1, 1, b, a), np.float32)}).values()
            exact = np.outer(weights(problem, a, b).sum(0), weights(problem, b, a).sum(0))
            np.testing.assert_allclose(dx[0, 0], exact, rtol=1e-5, atol=1e-5)
            count += 1
    assert count == 20 * 11


@pytest.mark.parametrize("machine", MACHINES[:2])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_accumulates_and_repeats_bit_for_bit(direction: str, machine: str) -> None:
    problem = parse(LINES["twice"], direction)
    given, name = problem.sample(np.random.default_rng(1)), problem.arguments()[-1].name
    with planning_for(machine) as context:
        (first,) = run(context, problem, given).values()
        (again,) = run(context, problem, given).values()
        added = np.full_like(first, 3)
        context.plan(problem).run(**given, **{name: core.accumulate(added)})
    assert first.tobytes() == again.tobytes()
    np.testing.assert_allclose(added, first + 3, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["", "f16 ", "bf16 ", "f64 "])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("width", [12, 13, 3])
def test_columns_gpu(width: int, method: str, dtype: str) -> None:
    """A work-item has four columns, of which the last ones may not be there, in four planes, at any address."""
    problem = parse(f"interpolate {method} {dtype}n1 c7 ih5 iw6 oh9 ow{width}", "forward")
    given = problem.sample(np.random.default_rng(4))
    with planning_for("a GPU") as context:
        (got,) = run(context, problem, given).values()
        odd = np.empty(got.size + 1, got.dtype)[1:].reshape(got.shape)
        odd[...] = np.nan
        run(context, problem, {**given, "y": odd})
    check(problem, got, given)
    np.testing.assert_array_equal(odd, got)


@pytest.mark.parametrize("dtype", ["", "f16 "])
def test_many_planes_gpu(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where work-items are many, each has more planes."""
    monkeypatch.setattr(elements, "UNIT_ITEMS", 1)
    problem = parse(f"interpolate linear {dtype}n2 c8 ih7 iw9 oh16 ow20", "forward")
    given = problem.sample(np.random.default_rng(4))
    with planning_for("a GPU") as context:
        launches = context.choose(problem).launches.launches
        assert launches[-1].global_size[1] == 16 // elements.MORE_PLANES
        (got,) = run(context, problem, given).values()
    check(problem, got, given)


@pytest.mark.parametrize("machine", MACHINES[:2])
def test_the_same_size_copies_what_is_no_number(machine: str) -> None:
    """Pixels of weight 0 are not read: neither NaN nor infinity leaves its place."""
    x = np.random.default_rng(2).choice([np.nan, np.inf, -np.inf, 1.0, 2.0], (1, 2, 5, 6)).astype(np.float32)
    for coordinates in COORDINATES:
        problem = InterpolationProblem("forward", "linear", 1, 2, (5, 6), (5, 6), coordinates)
        with planning_for(machine) as context:
            (y,) = run(context, problem, {"x": x}).values()
        np.testing.assert_array_equal(y, x)


@pytest.mark.skipif(not core.context().device.is_cpu, reason="kernels for CPU devices")
def test_every_implementation_is_chosen() -> None:
    with planning_for("this one") as context:
        chosen = {context.choose(parse(text, way)).algorithm for text in LINES.values() for way in DIRECTIONS[:1]}
        assert chosen == {"rows", "empty"}


def test_what_a_gpu_is_given() -> None:
    with planning_for("a GPU") as context:
        plan = context.choose(parse(LINES["twice"], "forward"))
        assert plan.algorithm == "elements" and plan.declined == (("rows", "is for CPU devices"),)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("interpolate forward cubic n1 c1 iw3 ow4", "'cubic'"),
        ("interpolate forward n1 c1 iw3 ow4", "method"),
        ("interpolate forward linear n1 c1 ow4", "expected iw"),
        ("interpolate forward linear n1 c1 ih3 iw4 ow4", "ohN"),
        ("interpolate forward linear n1 c1 iw4 ow4 oh3", "['oh']"),
        ("interpolate forward linear n1 c1 iw0 ow4", "in_size (0,)"),
        ("interpolate forward linear n1 c1 iw4 ow0", "out_size (0,)"),
        ("interpolate forward linear n1 c1 iw4 ow4 half_pixel asymmetric", "'asymmetric'"),
    ],
)
def test_wrong_texts_are_named(text: str, part: str) -> None:
    with pytest.raises(ProblemError) as caught:
        core.parse(text)
    assert str(caught.value).startswith("[interpolate] got ") and part in str(caught.value)


def test_rounding_says_nothing_of_linear_interpolation() -> None:
    assert core.parse("interpolate linear n1 c1 iw3 ow4 floor") == core.parse("interpolate linear n1 c1 iw3 ow4")
