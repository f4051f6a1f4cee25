"""The gradient of max pooling on CPU devices: exact with whole numbers, whatever the vectors, bands and work-items."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from unittest import mock

import numpy as np
import pytest

from clgraft import core
from clgraft.core.errors import Declined
from clgraft.core.operators.pooling import planes
from clgraft.core.planning.launches import Local
from clgraft.core.session.context import Context
from tests.core.guarded_memory import guarded
from tests.core.test_pointwise_past_caches import aligned
from tests.core.test_pooling import parse

pytestmark = pytest.mark.skipif(not core.context().device.is_cpu, reason="kernels for CPU devices")

# vectors cut out of neighbours and loaded, strides in phases and one by one, more taps than are unrolled
WINDOWS = (
    "kh3 kw3 ph1 pw1",
    "kh3 kw3 sh2 sw2",
    "kh3 kw3 sh2 sw2 ph1 pw1 ceil",
    "kh2 kw2 sh2 sw2",
    "kh5 kw5 sh2 sw2 ph2 pw2",
    "kh2 kw7 sh3 sw3 pw3",
    "kh1 kw2 sh3 sw5",
    "kh9 kw8 ph4 pw3",
    "kh3 kw4 sh9 sw2 ph2 pw3",
)
SIZES = ("ih1 iw9", "ih9 iw10", "ih23 iw16", "ih14 iw55", "ih11 iw67")


@cache
def context_of_this_file() -> Context:
    return Context.on(None)


def whole_numbers(problem: core.PoolProblem) -> dict[str, np.ndarray]:
    """Return inputs of few different values, so that windows hold their maximum more than once, and poisoned dx."""
    rng = np.random.default_rng(5)
    shapes = {argument.name: argument.shape for argument in problem.arguments()}
    x = rng.integers(-2, 3, shapes["x"]).astype(problem.dtype)
    y = problem.with_direction("forward").reference({"x": x})["y"].astype(problem.dtype)
    dy = rng.integers(-9, 10, shapes["dy"]).astype(problem.dtype)
    return {"x": x, "y": y, "dy": dy, "dx": np.full(shapes["dx"], np.nan, problem.dtype)}


def settled(problem: core.PoolProblem, context: Context, **settings: int) -> core.Plan:
    return context.plan_launches(problem, planes.plan(problem, context, settings), "planes")


def problems() -> Iterator[core.PoolProblem]:
    for window in WINDOWS:
        for size in SIZES:
            try:
                yield parse(f"pool max n1 c3 {size} {window}", "backward")
            except core.ProblemError:
                continue  # the window is larger than the image


@pytest.mark.parametrize("lanes", [16, 8, 2])
def test_vectors_and_runs_of_rows_do_not_matter(lanes: int) -> None:
    """A work-item's run begins and ends anywhere in a plane: with 7 and with 60 of them per core."""
    context, served = context_of_this_file(), 0
    for problem in problems():
        if problem.in_size[-1] < lanes:
            continue
        arrays = whole_numbers(problem)
        exact = problem.reference(arrays)["dx"]
        for items in (7, 60) if lanes == 16 else (7,):
            arrays["dx"].fill(np.nan)
            settled(problem, context, lanes=lanes, items=items).run(**arrays)
            np.testing.assert_array_equal(arrays["dx"], exact, err_msg=f"{problem} {items}")
            served += 1
    assert served > 20


@pytest.mark.parametrize("dtype", ["f16", "f64"])
def test_other_types(dtype: str) -> None:
    for window in WINDOWS[:4]:
        problem = parse(f"pool max {dtype} n2 c2 ih9 iw35 {window}", "backward")
        arrays = whole_numbers(problem)
        context_of_this_file().plan(problem, "planes").run(**arrays)
        np.testing.assert_array_equal(arrays["dx"], problem.reference(arrays)["dx"], err_msg=str(problem))


@pytest.mark.parametrize("at_end", [False, True])
def test_stays_within_its_arrays(at_end: bool) -> None:
    """Vectors reach beyond rows, but not beyond tensors."""
    for window in WINDOWS[:6]:
        for size in SIZES[1:4]:
            problem = parse(f"pool max n1 c3 {size} {window}", "backward")
            arrays = whole_numbers(problem)
            fenced = {name: guarded(array, at_end) for name, array in arrays.items()}
            context_of_this_file().plan(problem, "planes").run(**{name: array for name, (array, _) in fenced.items()})
            np.testing.assert_array_equal(fenced["dx"][0], problem.reference(arrays)["dx"], err_msg=str(problem))


@pytest.mark.parametrize("window", WINDOWS[:6])
def test_accumulates(window: str) -> None:
    problem = parse(f"pool max n1 c3 ih14 iw55 {window}", "backward")
    arrays = whole_numbers(problem)
    arrays["dx"].fill(100)
    total = arrays.pop("dx")
    context_of_this_file().plan(problem, "planes").run(**arrays, dx=core.accumulate(total))
    np.testing.assert_array_equal(total, problem.reference(arrays)["dx"] + 100)


@pytest.mark.parametrize("shift", [0, 1])
def test_gradients_too_large_for_caches(shift: int) -> None:
    """They are stored past caches where rows are whole vectors and dx is aligned."""
    context = Context.on(None)
    for window in (*WINDOWS[:4], f"{WINDOWS[0]} f16"):
        problem = parse(f"pool max n2 c3 ih9 iw48 {window}", "backward")
        arrays = whole_numbers(problem)
        dx = aligned(arrays.pop("dx"), shift)
        with mock.patch.object(planes, "outgrows_caches", return_value=True):
            context.plan(problem, "planes").run(**arrays, dx=dx)
        np.testing.assert_array_equal(dx, problem.reference(arrays)["dx"], err_msg=str(problem))


def test_little_local_memory_makes_low_bands() -> None:
    context = Context.on(None)
    problem = parse("pool max n1 c2 ih40 iw200 kh3 kw3 sh2 sw2 ph1 pw1", "backward")
    arrays = whole_numbers(problem)
    exact = problem.reference(arrays)["dx"]
    device, taken = context.device, []
    whole = sum(a.nbytes for a in planes.plan(problem, context).launches[0].arguments if isinstance(a, Local))
    for nbytes in (4 * whole, whole):  # a launch takes half of it at most
        context.device = replace(device, local_memory=nbytes)
        launches = planes.plan(problem, context)
        taken.append(sum(a.nbytes for a in launches.launches[0].arguments if isinstance(a, Local)))
        assert taken[-1] <= nbytes // 2
        arrays["dx"].fill(np.nan)
        context.plan_launches(problem, launches, "planes").run(**arrays)
        np.testing.assert_array_equal(arrays["dx"], exact)
    assert taken[0] > taken[1]
    context.device = replace(device, local_memory=2**12)
    with pytest.raises(Declined, match="bytes of local memory"):
        planes.plan(problem, context)
