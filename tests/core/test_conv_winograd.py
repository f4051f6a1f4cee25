"""Winograd's convolution: against float64, against the direct method's error, and the switch that forbids it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from conv_checks import DIRECTIONS, OUTPUTS, check, problem_lines, random_arrays, reference

from clgraft import core
from clgraft.core.context import Context
from clgraft.core.conv import winograd


def served(text: str) -> bool:
    problem = core.parse(text)
    return (
        problem.kernel == (3, 3)
        and problem.stride == problem.dilate == (1, 1)
        and problem.groups == 1
        and problem.batch > 0
        and problem.dtype != "float64"
    )


SPREAD = 4.0  # the transforms' factors, up to 64, let rounding errors grow

LINES = {name: text for name, text in problem_lines("conv").items() if served(text)}

pytestmark = pytest.mark.skipif(not core.context().device.is_cpu, reason="kernels for CPU devices")


@pytest.fixture(scope="module", autouse=True)
def whether_or_not_worthwhile() -> Iterator[None]:
    """Serve problems of any size."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(winograd, "worthwhile", lambda *sizes: True)
        yield


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", LINES)
def test_matches_float64(name: str, direction: str) -> None:
    problem = core.parse(LINES[name]).with_direction(direction)
    check(core.context(), problem, "winograd", spread=SPREAD)
    check(core.context(), problem, "winograd", spread=SPREAD, accumulate=True, seed=3)


@pytest.fixture(scope="module", params=["64 cores", "256-bit vectors"])
def other_machine(request: pytest.FixtureRequest) -> Context:
    """A context that plans for another machine, and runs on this one."""
    context = Context.on(None)
    changes = {"64 cores": {"compute_units": 64}, "256-bit vectors": {"vector_width": 8}}
    context.device = replace(context.device, **changes[request.param])
    return context


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", ["plain-3x3-bias", "small-planes", "3x3-many-channels", "3x3-asymmetric-channels"])
def test_plans_for_other_machines(other_machine: Context, name: str, direction: str) -> None:
    check(other_machine, core.parse(LINES[name]).with_direction(direction), "winograd", spread=SPREAD)


@pytest.mark.parametrize("own_weights", [True, False])
@pytest.mark.parametrize("name", ["many-channels", "3x3-many-channels", "batch-prime"])
def test_who_transforms_the_weights(name: str, own_weights: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(winograd, "OWN_WEIGHTS_BYTES", 2**40 if own_weights else 0)
    context = Context.on(None)
    context.device = replace(context.device, compute_units=1)
    for direction in ("forward", "backward_data"):
        problem = core.parse(LINES[name]).with_direction(direction)
        check(context, problem, "winograd", spread=SPREAD)


@pytest.mark.parametrize("name", ["3x3-many-channels", "batch-prime", "small-planes", "wide-row"])
def test_filter_in_parts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(winograd, "PART_BYTES", 2**17)
    problem = core.parse(LINES[name]).with_direction("backward_filter")
    check(Context.on(None), problem, "winograd", spread=SPREAD)
    check(Context.on(None), problem, "winograd", spread=SPREAD, accumulate=True)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_error_is_at_most_ten_times_the_direct_methods(direction: str) -> None:
    problem = core.parse("conv n6 ic24 ih56 iw56 oc24 kh3 kw3 ph1 pw1").with_direction(direction)
    arrays = random_arrays(problem)
    exact = reference(problem, arrays)
    errors = {}
    for algorithm in ("winograd", "cpu_gemm"):
        plan = core.context().plan(problem, algorithm=algorithm)
        result = np.full(exact.shape, np.nan, np.float32)
        given = {argument.name: arrays[argument.name] for argument in plan.arguments if argument.role == "in"}
        plan.run(**given, **{OUTPUTS[direction]: result})
        errors[algorithm] = np.linalg.norm(result - exact) / np.linalg.norm(exact)
    assert errors["winograd"] < 10 * errors["cpu_gemm"]


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_two_runs_give_the_same_bits(direction: str) -> None:
    problem = core.parse(LINES["3x3-many-channels"]).with_direction(direction)
    first, second = (check(core.context(), problem, "winograd", spread=SPREAD) for _ in range(2))
    assert first.tobytes() == second.tobytes()


def test_the_switch_forbids_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLGRAFT_WINOGRAD", "off")
    plan = Context.on(None).plan(core.parse(LINES["3x3-many-channels"]))
    assert plan.algorithm != "winograd"
    assert ("winograd", "CLGRAFT_WINOGRAD is off") in plan.declined
