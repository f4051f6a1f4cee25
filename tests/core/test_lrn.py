"""Local response normalisation against its float64 reference."""

from __future__ import annotations

import numpy as np
import pytest

from clgraft import core
from clgraft.core import LRNProblem, ProblemError
from tests.core.pointwise_checks import MACHINES, ROUNDING, planning_for, run
from tests.problem_sets import problem_lines

LINES = problem_lines("lrn")
SCALARS = {"alpha": 0.7, "k": 1.5}


def parse(line: str, direction: str = "forward") -> LRNProblem:
    problem = core.parse(line.replace("lrn", f"lrn {direction}", 1))
    assert isinstance(problem, LRNProblem) and core.parse(str(problem)) == problem
    return problem


def check(problem: LRNProblem, got: np.ndarray, exact: np.ndarray) -> None:
    arithmetic = ROUNDING["float64" if problem.dtype == "float64" else "float32"]
    largest = np.abs(exact).max(initial=1e-3)
    allowed = 30 * arithmetic * largest + 2 * ROUNDING[problem.dtype] * np.abs(exact)
    error = np.abs(got.astype(np.float64) - exact)
    assert got.shape == exact.shape
    assert (error <= allowed).all(), f"off by {error.max() / largest:.1e} of the largest"


def data(problem: LRNProblem) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shape = problem.arguments()[0].shape
    return {name: (3 * rng.standard_normal(shape)).astype(problem.dtype) for name in ("x", "dy")}


@pytest.mark.parametrize("machine", MACHINES[:3])
@pytest.mark.parametrize("name", LINES)
def test_matches_float64(name: str, machine: str) -> None:
    problem = parse(LINES[name])
    given = data(problem)
    wide = {name: value.astype(np.float64) for name, value in given.items()}
    with planning_for(machine) as context:
        (y,) = run(context, problem, {"x": given["x"]}, SCALARS).values()
        (dx,) = run(context, problem.with_direction("backward"), given, SCALARS).values()
    check(problem, y, problem.reference({"x": wide["x"]}, SCALARS)["y"])
    check(problem, dx, problem.with_direction("backward").reference(wide, SCALARS)["dx"])


@pytest.mark.parametrize("machine", MACHINES[:2])
def test_accumulates_and_repeats_bit_for_bit(machine: str) -> None:
    problem = parse(LINES["alexnet"])
    given = data(problem)
    with planning_for(machine) as context:
        for each, arrays, name in (
            (problem, {"x": given["x"]}, "y"),
            (problem.with_direction("backward"), given, "dx"),
        ):
            (first,) = run(context, each, arrays, SCALARS).values()
            (again,) = run(context, each, arrays, SCALARS).values()
            assert first.tobytes() == again.tobytes()
            added = np.full_like(first, 2)
            context.plan(each).run(scalars=SCALARS, **arrays, **{name: core.accumulate(added)})
            np.testing.assert_allclose(added, first + 2, rtol=1e-6)


def test_gradients_are_differences() -> None:
    """Central differences in float64."""
    problem = parse(LINES["double"])
    rng = np.random.default_rng(1)
    shape = problem.arguments()[0].shape
    x, dy, along = (rng.standard_normal(shape) for _ in range(3))
    step = 1e-6
    context = core.context()
    (dx,) = run(context, problem.with_direction("backward"), {"x": x, "dy": dy}, SCALARS).values()
    high, low = (run(context, problem, {"x": x + h * along}, SCALARS)["y"] for h in (step, -step))
    np.testing.assert_allclose((dx * along).sum(), ((high - low) * dy).sum() / (2 * step), rtol=1e-6)


@pytest.mark.skipif(not core.context().device.is_cpu, reason="kernels for CPU devices")
def test_every_implementation_is_chosen() -> None:
    with planning_for("this one") as context:
        assert {context.plan(parse(text)).algorithm for text in LINES.values()} == {"columns", "elements", "empty"}


def test_what_a_gpu_is_given() -> None:
    with planning_for("a GPU") as context:
        assert {context.plan(parse(text)).algorithm for text in LINES.values()} == {"elements", "empty"}


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("lrn forward n1", "expected a word cN"),
        ("lrn forward n1 c2 size4", "an odd number"),
        ("lrn forward n1 c2 size0", "size 0"),
        ("lrn forward n1 c2 gamma3", "'gamma3'"),
    ],
)
def test_wrong_texts_are_named(text: str, part: str) -> None:
    with pytest.raises(ProblemError) as caught:
        core.parse(text)
    assert str(caught.value).startswith("[lrn] got ") and part in str(caught.value)
