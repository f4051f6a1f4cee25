"""Winograd's convolution: against float64, against the direct method's error, and the switch that forbids it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from conv_checks import OUTPUTS, check, problem_lines, random_arrays, reference

from clgraft import core
from clgraft.core.context import Context
from clgraft.core.conv import winograd

DIRECTIONS = ("forward", "backward_data")


def served(text: str) -> bool:
    problem = core.parse(text)
    return (
        problem.kernel == (3, 3)
        and problem.stride == problem.dilate == (1, 1)
        and problem.groups == 1
        and problem.batch > 0
        and problem.dtype != "float64"
    )


LINES = {name: text for name, text in problem_lines("conv").items() if served(text)}

pytestmark = pytest.mark.skipif(not core.context().device.is_cpu, reason="kernels for CPU devices")


@pytest.fixture(scope="module", autouse=True)
def whether_or_not_worthwhile() -> Iterator[None]:
    """Serve problems of any size."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(winograd, "worthwhile", lambda *sizes: True)
        yield


@pytest.fixture(scope="module", params=["this one", "64 cores", "256-bit vectors"])
def machine(request: pytest.FixtureRequest) -> Context:
    """A context that plans for a machine, and runs on this one."""
    context = Context.on(None)
    changes = {"this one": {}, "64 cores": {"compute_units": 64}, "256-bit vectors": {"vector_width": 8}}
    context.device = replace(context.device, **changes[request.param])
    return context


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", LINES)
def test_matches_float64(machine: Context, name: str, direction: str) -> None:
    problem = core.parse(LINES[name]).with_direction(direction)
    check(machine, problem, "winograd", spread=True)
    check(machine, problem, "winograd", accumulate=True, spread=True, seed=3)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_error_is_at_most_ten_times_the_direct_methods(direction: str) -> None:
    problem = core.parse("conv n1 ic64 ih28 iw28 oc64 kh3 kw3 ph1 pw1").with_direction(direction)
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


def test_two_runs_give_the_same_bits() -> None:
    problem = core.parse(LINES["3x3-many-channels"])
    first, second = (check(core.context(), problem, "winograd", spread=True) for _ in range(2))
    assert first.tobytes() == second.tobytes()


def test_the_switch_forbids_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLGRAFT_WINOGRAD", "off")
    plan = Context.on(None).plan(core.parse(LINES["3x3-many-channels"]))
    assert plan.algorithm != "winograd"
    assert ("winograd", "CLGRAFT_WINOGRAD is off") in plan.declined
