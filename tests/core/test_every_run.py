"""Every problem of the sets by every implementation that serves it, in all directions.

Results are held to a reference in float64, written into NaN; a second run gives the same bits, whatever the workspace
holds from earlier runs; every output can be added to, and be computed alone.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from zlib import crc32

import numpy as np
import pytest

from clgraft import core
from clgraft.core.problem import SMALL, in_numpy, kinds
from tests.core.every_run import SETS, Check, expect_all_of, in_directions, nelements, problems, run, served_by
from tests.core.pointwise_checks import MACHINES, planning_for
from tests.problem_sets import problem_lines

LARGEST = 300_000  # elements of all arguments
POISON = "conv backward_filter n2 ic128 ih32 iw32 oc128 kh3 kw3 ph1 pw1"
CASTS = ("cast", "casts")  # their texts name both types
KINDS_WITH_KERNELS_FOR_GPUS = ("conv", "dense", "batchnorm")
KINDS_OF_GENERATED_KERNELS = (
    *("batchnorm", "cast", "casts", "crossentropy", "cumulative", "dropout", "gather", "gridsample", "interpolate"),
    *(
        "lrn",
        "matmul",
        "nms",
        "pointwise",
        "pool",
        "resample",
        "roialign",
        "scatter",
        "softmax",
        "suppress",
        "topk",
        "update",
    ),
)
NAMED = {f"{name}-{label}": text for name in SETS for label, text in problem_lines(name).items()}


def cases(kinds: Sequence[str] = (), largest: float = math.inf) -> Iterator[pytest.param]:
    """Yield all problems, or those of some kinds that have no more than so many elements."""
    for name, text in NAMED.items():
        if kinds and text.split()[0] not in kinds:
            continue
        for problem in in_directions(text):
            if nelements(problem) > largest:
                continue
            direction = getattr(problem, "direction", "")
            yield pytest.param(problem, id="-".join(filter(None, (name, direction))))


def in_type(problem: core.Problem, dtype: str) -> core.Problem:
    """Return a problem in another type; one that holds others has theirs."""
    parts = {field.name: getattr(problem, field.name) for field in fields(problem)}
    if "dtype" in parts:
        return replace(problem, dtype=dtype)
    held = {name: in_type(part, dtype) for name, part in parts.items() if isinstance(part, core.Problem)}
    return replace(problem, **held)


def small_cases(kinds: Sequence[str] = (), largest: float = LARGEST) -> Iterator[pytest.param]:
    """Yield those of float32 in the types of 16 bits, in turns in each direction of each kind."""
    dtypes, counts = list(filter(in_numpy, SMALL)), Counter[tuple[str, str]]()
    for case in cases(kinds, largest):
        (problem,) = case.values
        if problem.dtype == "float32" and problem.kind not in CASTS:
            way = problem.kind, getattr(problem, "direction", "")
            dtype = dtypes[counts[way] % len(dtypes)]
            counts[way] += 1
            yield pytest.param(in_type(problem, dtype), id=f"{case.id}-{dtype}")


@pytest.fixture(scope="module")
def poison() -> Callable[[], None]:
    """Fill the workspace with NaN, by a problem that keeps much in it."""
    plan = core.context().plan(core.parse(POISON))
    nan = {a.name: np.full(a.shape, np.nan, np.float32) for a in plan.arguments}

    def fill() -> None:
        run(plan, nan)
        assert np.isnan(nan["dw"]).all()

    return fill


def expect_possible(problem: core.Problem) -> None:
    if problem.dtype == "float64" and not core.context().device.has_fp64:
        pytest.skip("the device has no float64")


@pytest.mark.parametrize("problem", cases())
def test_matches_float64(problem: core.Problem, poison: Callable[[], None]) -> None:
    """By every implementation that is not made for GPUs, unless the device is one."""
    expect_possible(problem)
    assert core.parse(str(problem)) == problem
    check = Check(problem)
    for algorithm in served_by(problem, False if core.context().device.is_cpu else None):
        expect_all_of(core.context().plan(problem, algorithm), poison, check)


def test_both_types_of_16_bits_run_in_every_direction():
    ran = {(p.kind, getattr(p, "direction", ""), p.dtype) for case in (*cases(), *small_cases()) for p in case.values}
    own = {name: kind for name, kind in kinds().items() if kind.__module__.startswith("clgraft.")}
    ways = ((name, way) for name, kind in own.items() for way in kind.directions or ("",))
    wanted = {(*way, dtype) for way in ways for dtype in filter(in_numpy, SMALL) if way[0] not in CASTS}
    assert sorted(wanted - ran) == []


@pytest.mark.parametrize("problem", small_cases())
def test_types_of_16_bits(problem: core.Problem, poison: Callable[[], None]) -> None:
    """The problems that name no type, by every implementation that is not made for GPUs."""
    check = Check(problem)
    for algorithm in served_by(problem, False if core.context().device.is_cpu else None):
        expect_all_of(core.context().plan(problem, algorithm), poison, check)


@pytest.mark.parametrize("problem", small_cases(KINDS_WITH_KERNELS_FOR_GPUS, 40_000))
def test_types_of_16_bits_by_kernels_for_gpus(problem: core.Problem, poison: Callable[[], None]) -> None:
    check = Check(problem)
    for algorithm in served_by(problem, True):
        expect_all_of(core.context().plan(problem, algorithm), poison, check)


@pytest.mark.parametrize("problem", cases(KINDS_WITH_KERNELS_FOR_GPUS, 40_000))
def test_kernels_for_gpus(problem: core.Problem, poison: Callable[[], None]) -> None:
    """On every device, since most of them run on every device."""
    expect_possible(problem)
    check = Check(problem)
    for algorithm in served_by(problem, True):
        expect_all_of(core.context().plan(problem, algorithm), poison, check)


@pytest.mark.parametrize("machine", MACHINES[1:3])
@pytest.mark.parametrize("problem", cases(KINDS_OF_GENERATED_KERNELS))
def test_plans_for_other_machines(problem: core.Problem, machine: str, poison: Callable[[], None]) -> None:
    """Run here, where vectors are wider and cores fewer, or as work-items of a GPU."""
    expect_possible(problem)
    with planning_for(machine) as context:
        expect_all_of(context.plan(problem), poison)


@pytest.mark.parametrize("problem", list(small_cases(KINDS_OF_GENERATED_KERNELS, 40_000))[::4])
def test_types_of_16_bits_planned_for_other_machines(problem: core.Problem, poison: Callable[[], None]) -> None:
    """As the test above: some problems, each for one of these machines."""
    with planning_for(MACHINES[1 + crc32(str(problem).encode()) % 2]) as context:
        expect_all_of(context.plan(problem), poison)


@pytest.mark.parametrize("name", SETS)
def test_each_implementation_serves_a_set(name: str, poison: Callable[[], None]) -> None:
    """The first problem of a set that each implementation serves, in each direction."""
    seen = set()
    for problem in problems(name, LARGEST):
        for algorithm in served_by(problem, False if core.context().device.is_cpu else None):
            if (algorithm, getattr(problem, "direction", "")) not in seen and nelements(problem):
                seen.add((algorithm, getattr(problem, "direction", "")))
                expect_all_of(core.context().plan(problem, algorithm), poison)
    assert seen
