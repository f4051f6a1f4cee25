"""Matrix products, conversions, gathers, scatters, orders, cumulative sums and resampling against float64."""

from __future__ import annotations

import numpy as np
import pytest

from clgraft import core
from tests.core.pointwise_checks import MACHINES, planning_for, run
from tests.problem_sets import problem_lines

LINES = problem_lines("ordering")


@pytest.mark.parametrize("machine", MACHINES[:2])
@pytest.mark.parametrize("name", LINES)
def test_equal_elements_have_an_order(name: str, machine: str) -> None:
    problem = core.parse(LINES[name])
    given = problem.sample(np.random.default_rng(0))
    given["x"] = np.round(4 * given["x"])
    exact = problem.reference(given)
    with planning_for(machine) as context:
        outputs = {a.name: np.full(a.shape, 77, a.dtype) for a in problem.arguments() if a.role == "out"}
        for found, array in run(context, problem, {**given, **outputs}).items():
            np.testing.assert_array_equal(array, exact[found].astype(array.dtype), str(problem))
        context.plan(problem).run(**given, **{found: core.accumulate(array) for found, array in outputs.items()})
        for found, array in outputs.items():
            np.testing.assert_array_equal(array, 2 * exact[found].astype(array.dtype), str(problem))


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
