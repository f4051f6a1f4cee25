"""Local response normalisation against its float64 reference."""

from __future__ import annotations

import numpy as np
import pytest

from clgraft import core
from clgraft.core import LRNProblem, ProblemError
from tests.core.pointwise_checks import planning_for, run
from tests.problem_sets import problem_lines

LINES = problem_lines("lrn")
SCALARS = {"alpha": 0.7, "k": 1.5}


def parse(line: str, direction: str = "forward") -> LRNProblem:
    problem = core.parse(line.replace("lrn", f"lrn {direction}", 1))
    assert isinstance(problem, LRNProblem) and core.parse(str(problem)) == problem
    return problem


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
        assert {context.choose(parse(text)).algorithm for text in LINES.values()} == {"columns", "elements", "empty"}


def test_what_a_gpu_is_given() -> None:
    with planning_for("a GPU") as context:
        assert {context.choose(parse(text)).algorithm for text in LINES.values()} == {"elements", "empty"}


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
