"""Local response normalisation against its float64 reference."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from clgraft import core
from clgraft.core import LRNProblem, ProblemError
from clgraft.core.operators.lrn import columns
from tests.core.pointwise_checks import ROUNDING, planning_for, run
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
@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("line", ["n3 c9 s301", "n2 c7 s131", "n1 c6 s90", "n1 c400 s150"])
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
def test_tiles_of_several_vectors(dtype: str, line: str, direction: str) -> None:
    """With a last tile that is not full; wider ones for 16 bits, and narrow ones where many channels share a tile."""
    problem = parse(f"lrn {dtype} {line} size5 beta0.75".replace("f32 ", ""), direction)
    rng = np.random.default_rng(4)
    given = {a.name: rng.standard_normal(a.shape).astype(a.dtype) for a in problem.arguments() if a.role == "in"}
    (got,) = run(core.context(), problem, given, SCALARS).values()
    (exact,) = problem.reference(given, SCALARS).values()
    error = np.abs(got.astype(np.float64) - exact)
    assert (error <= (ROUNDING[problem.dtype] + 2e-6) * np.abs(exact) + 2e-6).all()


def vectors_of(text: str) -> int:
    """Return how many vectors a tile of a problem has."""
    found = []

    def kernel(file: str, name: str, defines: dict[str, int], *others: Any) -> Any:
        found.append(defines["TV"])
        return core.context().planner.kernel(file, name, defines, *others)

    columns.plan(parse(text), SimpleNamespace(device=core.context().device, kernel=kernel))
    return found[0]


@pytest.mark.skipif(not core.context().device.is_cpu, reason="kernels for CPU devices")
def test_tiles_are_as_wide_as_fits() -> None:
    lanes = core.context().device.vector_width
    for channels, pixels, small, single in ((9, 8, 8, 4), (9, 5, 4, 4), (9, 3, 1, 1), (600 * 16 // lanes, 8, 4, 4)):
        shape = f"n1 c{channels} s{pixels * lanes} size5 beta0.75"
        assert (vectors_of(f"lrn f16 {shape}"), vectors_of(f"lrn {shape}")) == (small, single)


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
