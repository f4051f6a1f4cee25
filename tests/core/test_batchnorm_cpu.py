"""The training batch norm of CPU devices in one launch: against float64, at the edge of memory, where it declines."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from unittest import mock

import numpy as np
import pytest

from clgraft import core
from clgraft.core.errors import Declined
from clgraft.core.operators.batchnorm import channels_cpu
from clgraft.core.operators.pointwise import generate
from clgraft.core.session.context import Context
from tests.core.guarded_memory import guarded
from tests.core.test_batchnorm import (
    EPS,
    SCALARS,
    check,
    check_nan_stays_in_its_channel,
    parse,
    random_arrays,
    reference,
    with_activation,
)
from tests.core.test_pointwise_past_caches import aligned

pytestmark = pytest.mark.skipif(not core.context().device.is_cpu, reason="kernels for CPU devices")

# whole vectors, tails of every kind, rows of more than a block of sums, many images, rows shorter than vectors
LINES = (
    "n8 c21 s49",
    "n2 c3 s64",
    "n3 c4 s31",
    "n3 c4 s2100",
    "n70 c5 s17",
    "n5 c7 s6",
    "n33 c2 s3",
    "n1 c300 s50",
    "f16 n4 c6 s37",
    "f64 n4 c3 s35",
)
WAYS = ("forward_training", "backward_training")


@cache
def context_of_this_file() -> Context:
    return Context.on(None)


def run_into_nan(
    problem: core.BatchNormProblem, arrays: dict[str, np.ndarray], algorithm: str = "channels_cpu"
) -> dict[str, np.ndarray]:
    results = {a.name: np.full(a.shape, np.nan, a.dtype) for a in problem.arguments() if a.role == "out"}
    plan = context_of_this_file().plan(problem, algorithm)
    plan.run({"eps": EPS, **SCALARS.get(problem.activation, {})}, **arrays, **results)
    return results


@pytest.mark.parametrize("direction", WAYS)
@pytest.mark.parametrize("line", LINES)
def test_matches_float64(line: str, direction: str) -> None:
    problem = parse(f"batchnorm {line}", direction)
    arrays = random_arrays(problem, 3.0)
    first = run_into_nan(problem, arrays)
    check(first, reference(problem, arrays), problem.dtype, 300)
    again = run_into_nan(problem, arrays)
    assert all(first[name].tobytes() == again[name].tobytes() for name in first)


@pytest.mark.parametrize("activation", ["relu", "clip"])
@pytest.mark.parametrize("direction", WAYS)
@pytest.mark.parametrize("line", [LINES[0], LINES[8], LINES[9]])
def test_activations(line: str, direction: str, activation: str) -> None:
    problem, arrays = with_activation(f"batchnorm {line}", direction, activation)
    results, exact = run_into_nan(problem, arrays), reference(problem, arrays)
    if direction == "forward_training":  # any shift will do: the same norm
        shift = exact.pop("shift") - results.pop("shift").astype(np.float64)
        exact["offset"] = exact["offset"] - shift * exact["scale"]
    check(results, exact, problem.dtype, 300)


@pytest.mark.parametrize("mean", [1000.0, -3e4])
@pytest.mark.parametrize("line", ["n32 c2 s100", "n1 c3 s5000", "n64 c7 s2"])
def test_large_means_keep_their_digits(line: str, mean: float) -> None:
    """Also where the first image, from which the shift is taken, is constant and far away."""
    problem = parse(f"batchnorm {line}", "forward_training")
    arrays = random_arrays(problem, mean)
    if problem.batch > 1:
        arrays["x"][0] = 0
    exact, results = reference(problem, arrays), run_into_nan(problem, arrays)
    np.testing.assert_allclose(results["var"], exact["var"], rtol=1e-5)
    np.testing.assert_allclose(results["y"], exact["y"], rtol=1e-5, atol=1e-5)


def test_nan_stays_in_its_channel() -> None:
    check_nan_stays_in_its_channel(run_into_nan, "n2 c3 s49")


@pytest.mark.parametrize("at_end", [False, True])
@pytest.mark.parametrize("direction", WAYS)
def test_stays_within_its_arrays(direction: str, at_end: bool) -> None:
    for line in ("n2 c3 s49", "n3 c5 s6"):
        problem = parse(f"batchnorm {line}", direction)
        arrays = random_arrays(problem)
        exact = run_into_nan(problem, arrays)
        fenced = {n: guarded(a, at_end) for n, a in {**arrays, **{n: a * np.nan for n, a in exact.items()}}.items()}
        context_of_this_file().plan(problem, "channels_cpu").run({"eps": EPS}, **{n: a for n, (a, _) in fenced.items()})
        for name, array in exact.items():
            assert fenced[name][0].tobytes() == array.tobytes(), name


@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize("direction", WAYS)
def test_results_too_large_for_caches(direction: str, shift: int) -> None:
    """They are stored past caches where rows are aligned: the same values, added to or not."""
    context = Context.on(None)
    name = "y" if direction == "forward_training" else "dx"
    for line in ("n2 c3 s48", "n2 c3 s64", "f16 n2 c3 s64"):
        problem = parse(f"batchnorm {line}", direction)
        arrays = random_arrays(problem)
        exact = run_into_nan(problem, arrays)[name]
        result = aligned(np.full_like(exact, np.nan), shift)
        with mock.patch.object(generate, "outgrows_caches", return_value=True):
            plan = context.plan(problem, "channels_cpu")
        others = {a.name: None for a in problem.arguments() if a.role == "out" and a.name != name}
        plan.run({"eps": EPS}, **arrays, **others, **{name: result})
        assert result.tobytes() == exact.tobytes()
        plan.run({"eps": EPS}, **arrays, **others, **{name: core.accumulate(result)})
        np.testing.assert_array_equal(result, exact + exact)


@pytest.mark.parametrize(
    ("line", "direction", "part"),
    [
        ("n4 c5 s1", "forward_training", "of 1 elements"),
        ("n0 c5 s9", "backward_training", "0 rows"),
        ("n4 c5 s40", "forward_inference", "has no forward_inference"),
        ("n8 c999 s40000", "forward_training", "does not stay"),
        ("n8 c100 s4096", "backward_training", "leave cores idle"),
    ],
)
def test_what_it_declines(line: str, direction: str, part: str) -> None:
    context = Context.on(None)
    context.device = replace(context.device, compute_units=64)
    with pytest.raises(Declined, match=part):
        channels_cpu.plan(parse(f"batchnorm {line}", direction), context)
    assert context.choose(parse("batchnorm n8 c100 s49", WAYS[0])).algorithm == "channels_cpu"


@pytest.mark.parametrize("activation", ["", "relu", "clip"])
@pytest.mark.parametrize("line", [*LINES[:4], *LINES[7:], "bf16 n4 c6 s37 f32_parameters"])
def test_residuals(line: str, activation: str) -> None:
    """They are added before the activation, at any address, also where the result takes their place."""
    words = line.split(" f32_parameters")
    problem = parse(
        f"batchnorm {words[0]} {activation}{' f32_parameters' * (len(words) - 1)} residual", "forward_training"
    )
    arrays = random_arrays(problem, 3.0)
    arrays = {a.name: arrays[a.name].astype(a.dtype) for a in problem.arguments() if a.role == "in"}
    exact = reference(problem, arrays)
    plain = reference(replace(problem, residual=False), {n: a for n, a in arrays.items() if n != "residual"})
    assert not np.allclose(exact["y"], plain["y"], atol=0.1)  # it counts
    results = run_into_nan(problem, arrays)
    check(results, exact, problem.dtype, 300)
    plan = context_of_this_file().plan(problem, "channels_cpu")
    for place in ("residual", "x"):
        shifted = np.full(problem.arguments()[0].size + 1, np.nan, problem.dtype)[1:].reshape(problem.shape)
        shifted[...] = arrays[place]
        inside = {name: np.full_like(array, np.nan) for name, array in results.items()} | {"y": shifted}
        plan.run({"eps": EPS, **SCALARS.get(activation, {})}, **{**arrays, place: shifted}, **inside)
        assert all(np.array_equal(inside[name], array) for name, array in results.items())
