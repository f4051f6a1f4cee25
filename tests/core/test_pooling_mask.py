"""Masks of maxima against their reference."""

from __future__ import annotations

import numpy as np
import pytest

from clgraft import core
from clgraft.core import PoolProblem, ProblemError
from tests.core.pointwise_checks import MACHINES, planning_for, run
from tests.core.test_pooling import data, forward, parse, random_problem
from tests.problem_sets import problem_lines

LINES = {name: line for name, line in problem_lines("pooling").items() if " max" in line}


def mask_of(problem: PoolProblem, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the first place in the plane that holds the maximum."""
    return problem.reference({"x": x, "y": y})["mask"]


def check(problem: PoolProblem, arrays: dict[str, np.ndarray]) -> None:
    expected = mask_of(problem, arrays["x"], arrays["y"]).astype(problem.dtype)
    (got,) = run(core.context(), problem, arrays).values()
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("machine", MACHINES[:3])
@pytest.mark.parametrize("name", LINES)
def test_matches_the_reference(name: str, machine: str) -> None:
    problem = parse(LINES[name], "mask")
    assert core.parse(str(problem)) == problem
    with planning_for(machine):
        check(problem, data(problem))


@pytest.mark.parametrize("seed", range(25))
def test_random_problems(seed: int) -> None:
    found = random_problem(np.random.default_rng(seed), "forward")
    line = str(found).replace(f"forward {found.operator}", "mask max")
    problem = core.parse(line.replace(" count_inside", ""))
    assert isinstance(problem, PoolProblem)
    check(problem, data(problem, seed))


@pytest.mark.parametrize("dtype", ["f32", "f16", "f64"])
def test_windows_that_hold_no_number(dtype: str) -> None:
    problem = parse(f"pool max {dtype} n2 c3 ih8 iw20 kh2 kw2 sh2 sw3 ceil", "mask")
    x = np.random.default_rng(1).choice([np.nan, -np.inf, 1.0], (2, 3, 8, 20), p=[0.5, 0.4, 0.1]).astype(problem.dtype)
    y = forward(problem, x).astype(problem.dtype)
    assert (mask_of(problem, x, y) < 0).any()
    check(problem, {"x": x, "y": y})


def test_a_mask_is_added_to() -> None:
    problem = parse("pool max n1 c2 ih5 iw7 kh3 kw3", "mask")
    arrays = data(problem)
    (first,) = run(core.context(), problem, arrays).values()
    added = np.full_like(first, 10)
    core.context().plan(problem).run(**arrays, mask=core.accumulate(added))
    np.testing.assert_array_equal(added, first + 10)


def test_only_maxima_have_one() -> None:
    with pytest.raises(ProblemError, match=r"\[pool\] got operator average, expected max"):
        parse("pool average n1 c2 ih5 iw7 kh3 kw3", "mask")
