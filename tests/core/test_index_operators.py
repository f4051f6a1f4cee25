"""Matrix products, conversions, gathers, scatters, orders, cumulative sums and resampling against float64."""

from __future__ import annotations

import numpy as np
import pytest

from clgraft import core
from tests.core.pointwise_checks import MACHINES, ROUNDING, planning_for, run
from tests.problem_sets import problem_lines

SETS = ("matmul", "cast", "indexing", "ordering", "cumulative", "resampling", "detection", "sampling")
LINES = {f"{name}-{label}": text for name in SETS for label, text in problem_lines(name).items()}
EXACT = ("gather", "topk", "cast", "nms")
PLACED = ("gridsample", "roialign")


def check(problem: core.Problem, got: dict[str, np.ndarray], given: dict[str, np.ndarray]) -> None:
    """Hold results to the roundings of their sums; moved elements to none but their storage's."""
    exact = problem.reference(given)
    placed = problem.kind in PLACED
    bound = {} if placed else problem.reference({n: a if a.dtype == "int32" else np.abs(a) for n, a in given.items()})
    for argument in problem.arguments():
        if argument.role == "in":
            continue
        name, expected = argument.name, exact[argument.name]
        assert got[name].shape == expected.shape
        if problem.kind in EXACT:
            np.testing.assert_array_equal(got[name], expected.astype(argument.dtype), str(problem))
            continue
        arithmetic = ROUNDING["float64" if problem.dtype == "float64" else "float32"]
        if placed:  # weights follow from places, which are rounded too
            bound[name] = 8.0 * np.abs(given["x"].astype(np.float64)).max(initial=0)
        allowed = (problem.terms + 8) * arithmetic * bound[name] + 2 * ROUNDING[problem.dtype] * np.abs(expected)
        error = np.abs(got[name].astype(np.float64) - expected)
        assert (error <= allowed + 1e-30).all(), f"{problem}: {error.max()}"


@pytest.mark.parametrize("machine", MACHINES[:2])
@pytest.mark.parametrize("name", LINES)
def test_matches_float64(name: str, machine: str) -> None:
    problem = core.parse(LINES[name])
    assert core.parse(str(problem)) == problem
    given = problem.sample(np.random.default_rng(0))
    if problem.kind == "topk":  # equal elements, whose order is defined
        given["x"] = np.round(4 * given["x"])
    with planning_for(machine) as context:
        outputs = {a.name: np.full(a.shape, 77, a.dtype) for a in problem.arguments() if a.role == "out"}
        check(problem, run(context, problem, {**given, **outputs}, problem.trial_scalars()), given)


@pytest.mark.parametrize(
    "name", ["matmul-batch", "indexing-scatter-add", "ordering-few", "ordering-many", "cast-whole"]
)
def test_accumulates_and_repeats_bit_for_bit(name: str) -> None:
    problem, context = core.parse(LINES[name]), core.context()
    given = problem.sample(np.random.default_rng(1))
    outputs = [a for a in problem.arguments() if a.role == "out"]
    first, again = (
        run(context, problem, {**given, **{a.name: np.zeros(a.shape, a.dtype) for a in outputs}}) for _ in "ab"
    )
    added = {a.name: np.full(a.shape, 3, a.dtype) for a in outputs}
    context.plan(problem).run(**given, **{name: core.accumulate(array) for name, array in added.items()})
    for argument in outputs:
        assert first[argument.name].tobytes() == again[argument.name].tobytes()
        np.testing.assert_allclose(added[argument.name], first[argument.name] + 3, rtol=1e-5, atol=1e-5)


def test_an_index_outside_reads_nothing_and_changes_nothing() -> None:
    context = core.context()
    x, index = np.arange(6, dtype=np.float32).reshape(1, 3, 2), np.array([0, 3, -4, -1], np.int32)
    y = run(context, core.parse("gather shared outer1 extent3 inner2 count4"), {"x": x, "index": index})["y"]
    np.testing.assert_array_equal(y[0], [[0, 1], [np.nan, np.nan], [np.nan, np.nan], [4, 5]])
    updates = -np.ones((1, 4, 2), np.float32)
    problem = core.parse("scatter shared outer1 extent3 inner2 count4")
    y = run(context, problem, {"x": x, "index": index, "updates": updates})["y"]
    np.testing.assert_array_equal(y[0], [[-1, -1], [2, 3], [-1, -1]])


def test_no_number_comes_first_and_stays() -> None:
    context = core.context()
    x = np.array([1, np.nan, 3, np.inf, np.nan, -2], np.float32).reshape(1, 6, 1)
    for text, expected in (("k3", [1, 4, 3]), ("k6 smallest", [1, 4, 5, 0, 2, 3]), ("k2 last", [4, 1])):
        problem = core.parse(f"topk outer1 extent6 inner1 {text}")
        index = np.zeros((1, problem.k, 1), np.int32)
        run(context, problem, {"x": x, "index": index})
        assert index.ravel().tolist() == expected
    edges = np.array([np.nan, np.inf, -np.inf, 3e9, -3e9, 2.9, -2.9, 300], np.float64)
    whole = np.zeros(8, np.int32)
    run(context, core.parse("cast n8 from_f64 to_i32"), {"x": edges, "y": whole})
    assert whole.tolist() == [0, 2**31 - 1, -(2**31), 2**31 - 1, -(2**31), 2, -2, 300]


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("matmul n2 m3 k4", "expected a word cN"),
        ("matmul n2 m3 k4 c5 transposed_a transposed_b", "neither transposed nor shared"),
        ("topk outer1 extent3 inner1 k4", "at most the extent 3"),
        ("gather shared outer1 extent3 inner1", "expected a word countN"),
        ("scatter rows div outer1 extent3 inner1 count2", "'div'"),
        ("cast n4 from_f32 to_i64", "'to_i64'"),
        ("cast n4 from_f32", "target"),
        ("cumulative mean outer1 extent3 inner1", "'mean'"),
        ("resample outer1 in0 out3 inner1 taps1", "at least 1"),
    ],
)
def test_wrong_texts_are_named(text: str, part: str) -> None:
    with pytest.raises(core.ProblemError) as caught:
        core.parse(text)
    assert str(caught.value).startswith(f"[{text.split()[0]}] got ") and part in str(caught.value)
