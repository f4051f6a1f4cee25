"""The convolution for CPU devices: every direction against float64, in every shape of blocking."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from clgraft import core
from clgraft.core.operators.conv.gemm_cpu import gemm as cpu_gemm
from clgraft.core.operators.conv.gemm_cpu import phases
from clgraft.core.session.context import Context
from tests.core.conv_checks import DIRECTIONS, OUTPUTS, check, random_arrays
from tests.problem_sets import problem_lines

LINES = problem_lines("conv")
SHAPES = (
    *("plain-3x3-bias", "3x3-stride-2", "groups-2", "dilate-2-stride-2", "small-planes", "deep", "1x1"),
    *("3d-stride-dilate", "f64-3x3", "f16-3x3"),
)

pytestmark = pytest.mark.skipif(not core.context().device.is_cpu, reason="kernels for CPU devices")


def fresh_context(**changes: int) -> Context:
    """Return a context without plans, of this device with changes."""
    context = Context.on(None)
    context.device = replace(context.device, **changes)
    return context


@pytest.fixture(scope="module", params=["64 cores", "little local memory", "256-bit vectors"])
def other_device(request: pytest.FixtureRequest) -> Context:
    """A context that plans for a different machine, and runs on this one."""
    changes = {
        "64 cores": {"compute_units": 64},
        "little local memory": {"local_memory": 32 * 1024},
        "256-bit vectors": {"vector_width": 8},
    }
    return fresh_context(**changes[request.param])


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", SHAPES)
def test_plans_for_other_machines(other_device: Context, name: str, direction: str) -> None:
    problem = core.parse(LINES[name]).with_direction(direction)
    check(other_device, problem, "cpu_gemm")
    check(other_device, problem, "cpu_gemm", accumulate=True)


STRIDED = {name: text for name, text in LINES.items() if max(core.parse(text).stride) > 1}


@pytest.mark.parametrize("merge", [True, False], ids=["merged", "apart"])
@pytest.mark.parametrize("name", STRIDED)
def test_phases_of_a_stride(name: str, merge: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_gemm, "dense_pays", lambda *problem: False)
    found = phases.products
    monkeypatch.setattr(
        phases, "choose", lambda problem, planner, numbers: found(problem, planner, 3, merge, numbers=numbers)
    )
    problem = core.parse(STRIDED[name]).with_direction("backward_data")
    context = fresh_context()
    check(context, problem, "cpu_gemm")
    check(context, problem, "cpu_gemm", accumulate=True)


def random_one_tap(seed: int) -> core.ConvProblem:
    """Return a convolution with a kernel of one tap, a stride and padding, in one to three dimensions."""
    rng = np.random.default_rng(seed)
    ndim, groups = 1 + seed % 3, int(rng.choice([1, 1, 3]))
    return core.ConvProblem(
        direction=("forward", "backward_data")[seed % 2],
        batch=int(rng.integers(0, 5)),
        in_channels=groups * int(rng.integers(1, 40)),
        out_channels=groups * int(rng.integers(1, 40)),
        groups=groups,
        in_size=tuple(rng.integers(1, (400, 40, 12)[ndim - 1], ndim)),
        kernel=(1,) * ndim,
        stride=(int(rng.integers(2, 5)), *rng.integers(1, 5, ndim - 1)),
        pad_begin=tuple(rng.integers(0, 4, ndim)),
        pad_end=tuple(rng.integers(0, 4, ndim)),
        dtype=("float32", "float64", "float16")[seed // 3 % 3],
        bias=bool(seed % 4 // 2),
    )


@pytest.mark.parametrize("seed", range(36))
def test_strides_that_are_taken_out_of_the_product(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_gemm, "dense_pays", lambda problem, *rest: cpu_gemm.can_be_dense(problem))
    problem, context = random_one_tap(seed), fresh_context()
    check(context, problem, "cpu_gemm", accumulate=bool(seed // 2 % 2), seed=seed)
    names = {launch.kernel.function_name for launch in context.choose(problem, "cpu_gemm").launches.launches}
    forward = problem.direction == "forward"
    assert ("collect" in names) == (forward and problem.batch > 0)
    spreads = not forward and cpu_gemm.can_be_dense(problem)
    assert ("conv_plain" in names) == ((forward or spreads) and problem.batch > 0)


@pytest.mark.parametrize("seed", range(0, 36, 2))
def test_strided_pixels_in_place(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without padding one launch collects and multiplies, but for the packing of halves."""
    monkeypatch.setattr(cpu_gemm, "dense_pays", lambda *problem: False)
    problem, context = replace(random_one_tap(seed), pad_begin=(), pad_end=()), fresh_context()
    check(context, problem, "cpu_gemm", accumulate=bool(seed // 2 % 2), seed=seed)
    names = {launch.kernel.function_name for launch in context.choose(problem, "cpu_gemm").launches.launches}
    assert names - {"pack_weights"} == ({"conv_plain"} if problem.batch else set())


def random_problem(seed: int) -> core.ConvProblem:
    rng = np.random.default_rng(seed)
    ndim = int(rng.integers(1, 4))
    groups = int(rng.choice([1, 1, 2, 3]))
    kernel = rng.integers(1, 5, ndim)
    dilate = rng.integers(1, 4, ndim)
    begin, end = rng.integers(0, 4, (2, ndim))
    size = np.maximum(dilate * (kernel - 1) + 1 - begin - end, 1) + rng.integers(0, (40, 14, 6)[ndim - 1], ndim)
    return core.ConvProblem(
        direction=str(rng.choice(DIRECTIONS)),
        batch=int(rng.integers(1, 5)),
        in_channels=groups * int(rng.integers(1, 20)),
        out_channels=groups * int(rng.integers(1, 40)),
        groups=groups,
        in_size=tuple(size),
        kernel=tuple(kernel),
        stride=tuple(rng.integers(1, 5, ndim)),
        dilate=tuple(dilate),
        pad_begin=tuple(begin),
        pad_end=tuple(end),
        bias=bool(rng.integers(2)),
    )


@pytest.mark.parametrize("seed", range(60))
def test_random_problems(seed: int) -> None:
    check(core.context(), random_problem(seed), "cpu_gemm", accumulate=bool(seed % 2), seed=seed)


def random_product(seed: int) -> core.ConvProblem:
    """Return a convolution with kernels of one pixel: its tiles lie in one image, in two or in many."""
    rng = np.random.default_rng(seed)
    groups = int(rng.choice([1, 1, 1, 3]))
    return core.ConvProblem(
        direction=("forward", "backward_data")[seed % 2],
        batch=int(rng.integers(1, 12)),
        in_channels=groups * int(rng.choice([1, 7, 8, 50, 300])),
        out_channels=groups * int(rng.choice([1, 5, 16, 61, 130])),
        groups=groups,
        in_size=(1, int(rng.choice([1, 3, 16, 47, 48, 49, 200, 1000]))),
        kernel=(1, 1),
        bias=bool(rng.integers(2)),
        dtype=("float32", "float32", "float16", "float64")[seed // 2 % 4],
    )


@pytest.mark.parametrize("seed", range(24))
def test_random_products_in_place(other_device: Context, seed: int) -> None:
    problem = random_product(seed)
    check(core.context(), problem, "cpu_gemm", accumulate=bool(seed % 3), seed=seed)
    check(other_device, problem, "cpu_gemm", accumulate=not seed % 3, seed=seed)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_nan_and_infinity_reach_the_result(direction: str) -> None:
    problem = core.parse(LINES["plain-3x3"]).with_direction(direction)
    arrays = random_arrays(problem)
    source = "x" if direction == "forward" else "dy"
    arrays[source][0, 0, 4, 4] = np.nan
    arrays[source][1, 0, 4, 4] = np.inf
    plan = core.context().plan(problem, algorithm="cpu_gemm")
    given = {argument.name: arrays[argument.name] for argument in plan.arguments if argument.role == "in"}
    result = np.zeros(plan.arguments[-1].shape, np.float32)
    plan.run(**given, **{OUTPUTS[direction]: result})
    if direction == "backward_filter":
        assert np.isnan(result[0]).all()
        assert np.isfinite(result[1:]).all()
    else:
        assert np.isnan(result[0, :, 3:6, 3:6]).all()
        assert not np.isfinite(result[1, :, 3:6, 3:6]).any()
        assert np.isfinite(result[:, :, :3]).all()
