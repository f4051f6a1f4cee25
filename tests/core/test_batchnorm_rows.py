"""The training batch norm of CPU devices whose channels lie together, as in channels last: against float64."""

from __future__ import annotations

import numpy as np
import pytest

from clgraft import core
from clgraft.core.operators.batchnorm import rows_cpu
from tests.core.test_batchnorm import check, parse, random_arrays, reference, with_activation
from tests.core.test_batchnorm_cpu import WAYS, context_of_this_file, run_into_nan
from tests.core.test_pointwise_past_caches import aligned

pytestmark = pytest.mark.skipif(not core.context().device.is_cpu, reason="kernels for CPU devices")

# one row, vectors of every length, several parts of which the last is short
LINES = ("n1 c16 s1", "n3001 c24 s1", "f16 n999 c24 s1", "f64 n1501 c40 s1")


@pytest.mark.parametrize("direction", WAYS)
@pytest.mark.parametrize("line", LINES)
def test_matches_float64(line: str, direction: str) -> None:
    problem = parse(f"batchnorm {line}", direction)
    arrays = random_arrays(problem, 3.0)
    first = run_into_nan(problem, arrays, "rows_cpu")
    check(first, reference(problem, arrays), problem.dtype, 300)
    again = run_into_nan(problem, arrays, "rows_cpu")
    assert all(first[name].tobytes() == again[name].tobytes() for name in first)


@pytest.mark.parametrize("direction", WAYS)
def test_activations(direction: str) -> None:
    problem, arrays = with_activation("batchnorm n1577 c24 s1", direction, "clip")
    results, exact = run_into_nan(problem, arrays, "rows_cpu"), reference(problem, arrays)
    if direction == "forward_training":  # any shift will do: the same norm
        shift = exact.pop("shift") - results.pop("shift").astype(np.float64)
        exact["offset"] = exact["offset"] - shift * exact["scale"]
    check(results, exact, problem.dtype, 300)


@pytest.mark.parametrize("mean", [1000.0, -3e4])
def test_large_means_keep_their_digits(mean: float) -> None:
    problem = parse("batchnorm n6007 c24 s1", "forward_training")
    arrays = random_arrays(problem, mean)
    check(run_into_nan(problem, arrays, "rows_cpu"), reference(problem, arrays), problem.dtype, 300)


@pytest.mark.parametrize("direction", WAYS)
def test_results_are_added_left_out_or_take_the_place_of_inputs(direction: str, monkeypatch) -> None:
    """Also where results are too large for caches."""
    monkeypatch.setattr(rows_cpu, "outgrows_caches", lambda planner, nbytes: True)
    context = core.Context.on(None)
    problem = parse("batchnorm n1577 c48 s1", direction)
    arrays = {name: aligned(array) for name, array in random_arrays(problem, 1.0).items()}
    exact = reference(problem, arrays)
    plan, scalars = context.plan(problem, "rows_cpu"), {"eps": 1e-5}
    whole = "y" if direction.startswith("forward") else "dx"
    plain = {name: aligned(np.full(value.shape, np.nan, np.float32)) for name, value in exact.items()}
    plan.run(scalars, **arrays, **plain)
    added = {name: aligned(np.ones(value.shape, np.float32)) for name, value in exact.items()}
    plan.run(scalars, **arrays, **{name: core.accumulate(value) for name, value in added.items()})
    for name, value in plain.items():
        np.testing.assert_array_equal(added[name], value + 1 if name != whole else added[name])
        np.testing.assert_allclose(added[name] - 1, value, atol=2e-5 * np.abs(value).max())
    rest = {name: np.full(value.shape, np.nan, np.float32) for name, value in exact.items() if name != whole}
    plan.run(scalars, **arrays, **{whole: None}, **rest)
    alone = np.full(exact[whole].shape, np.nan, np.float32)
    plan.run(scalars, **arrays, **{whole: alone}, **dict.fromkeys(rest))
    for name, value in {**rest, whole: alone}.items():
        np.testing.assert_array_equal(value, plain[name])
    plan.run(scalars, **arrays, **{**plain, whole: arrays["x"]})
    np.testing.assert_array_equal(arrays["x"], alone)


@pytest.mark.parametrize("line", ["n8 c21 s1", "n8 c16 s4", "n8 c2 s1", "n0 c16 s1"])
def test_what_it_declines(line: str) -> None:
    problem = parse(f"batchnorm {line}", "forward_training")
    if problem.batch:
        with pytest.raises(core.ProblemError, match="rows_cpu"):
            context_of_this_file().plan(problem, "rows_cpu")
    assert context_of_this_file().choose(problem).algorithm != "rows_cpu"
