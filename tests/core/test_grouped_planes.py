"""Convolution in groups of few channels: against float64, within its buffers, and what is not finite in its group."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clgraft import core
from clgraft.core.errors import Declined
from clgraft.core.operators.conv.depthwise import cpu_fixed, grouped_planes
from clgraft.core.planning.choice import Choice
from clgraft.core.session.context import Context
from tests.core.conv_checks import OUTPUTS, check, random_arrays
from tests.core.guarded_memory import check_within_pages
from tests.core.wide_vectors import wide_context
from tests.problem_sets import problem_lines

pytestmark = pytest.mark.skipif(not core.context().device.is_cpu, reason="made for CPU devices")

NAME = "grouped_planes"
DIRECTIONS = ("forward", "backward_data", "backward_filter")
LINES = {name: text for name, text in problem_lines("grouped").items()}
FEW = ["groups-of-4", "four-to-three", "one-to-many", "rows-of-4-vectors", "stride-2", "asymmetric-pad", "batch-prime"]
NOT_SERVED = {
    *((name, "backward_data") for name in LINES if "stride" in name),  # the gradient of a stride
    *((name, "backward_filter") for name in ("one-to-many", "groups-of-32")),  # single channels, large sums
}


def cases(names=LINES) -> list[tuple[str, str]]:
    return [
        (name, direction)
        for name in names
        for direction in DIRECTIONS
        if (name, direction) not in NOT_SERVED and name != "batch-0"
    ]


def fitting(problem: core.ConvProblem) -> Context:
    """Return the session's context, or one with longer vectors if the rows need them."""
    try:
        grouped_planes.plan(problem, core.context().planner)
    except Declined as reason:
        assert "rows that with their padding fit" in str(reason) and core.context().device.vector_width < 16
        return wide_context()
    return core.context()


@pytest.mark.parametrize(("name", "direction"), cases())
def test_stands_first(name: str, direction: str) -> None:
    """And is right with longer vectors than this device's, where it needs them; `test_every_run` has the others."""
    problem = core.parse(LINES[name]).with_direction(direction)
    context = fitting(problem)
    one_channel = problem.depthwise and direction == "forward"  # another implementation stands first for usual sizes
    first = one_channel and not cpu_fixed.reserved(problem)
    assert context.choose(problem).algorithm == ("depthwise_fixed" if first else NAME)
    if context is not core.context():
        check(context, problem, NAME)
        check(context, problem, NAME, accumulate=True, seed=7)


def test_a_batch_of_nothing() -> None:
    assert core.context().choose(core.parse(LINES["batch-0"])).algorithm == "empty"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("conv backward_filter g4 n1 ic4 ih9 iw9 oc4 kh3 kw3", "backward_filter of groups of several channels"),
        ("conv backward_filter g2 n1 ic64 ih9 iw9 oc64 kh5 kw5", "bytes of planes and sums"),
        ("conv backward_bias g2 n1 ic4 ih5 iw5 oc4 kh3 kw3", "backward_bias"),
        ("conv g2 n1 ic4 id5 ih5 iw5 oc4 kd3 kh3 kw3", "one or two spatial axes"),
        ("conv n1 ic4 ih9 iw9 oc4 kh3 kw3", "got 1 of 4 and 4"),
        ("conv g2 n1 ic80 ih9 iw9 oc4 kh3 kw3", "got 2 of 40 and 2"),
        ("conv g2 n1 ic4 ih9 iw9 oc4 kh3 kw3 sh3 sw3", "strides of 1 and 2"),
        ("conv backward_data g2 n1 ic4 ih9 iw9 oc4 kh3 kw3 sh2 sw2", "backward_data at stride 1"),
        ("conv g2 n1 ic4 ih9 iw9 oc4 kh7 kw7 ph3 pw3", "49 taps"),
        ("conv backward_data g2 n1 ic4 ih9 iw9 oc4 kh2 kw2 ph2 pw2", "negative padding"),
        ("conv g2 n1 ic4 ih9 iw900 oc4 kh3 kw3", "rows that with their padding fit"),
        ("conv g2 n1 ic4 ih3 iw3 oc4 kh3 kw3", "at least"),
    ],
)
def test_declines(text: str, reason: str) -> None:
    from clgraft.core.operators.conv.depthwise import grouped_planes

    with pytest.raises(Declined, match=reason):
        grouped_planes.plan(core.parse(text), core.context())


@pytest.mark.parametrize("change", [{"compute_units": 64}, {"vector_width": 8}], ids=["64 cores", "256-bit vectors"])
def test_plans_for_other_machines(change: dict[str, int]) -> None:
    context = Context.on(None)
    context.device = replace(context.device, **change)
    for name, direction in cases(["groups-of-4", "four-to-three", "rows-of-4-vectors", "stride-2"]):
        problem = core.parse(LINES[name]).with_direction(direction)
        check(context, problem, NAME)
        check(context, problem, NAME, accumulate=True)


def test_little_local_memory() -> None:
    context = Context.on(None)
    context.device = replace(context.device, local_memory=8 * 1024)
    plan = context.choose(core.parse(LINES["groups-of-4"]))
    assert plan.algorithm != NAME
    assert "bytes of scratch do not fit" in dict(plan.declined)[NAME]


@st.composite
def problems(draw: st.DrawFn) -> core.ConvProblem:
    direction = draw(st.sampled_from(DIRECTIONS))
    stride = draw(st.integers(1, 2)) if direction != "backward_data" else 1
    begin = (draw(st.integers(0, 2)), draw(st.integers(0, 2)))
    end = (draw(st.integers(0, 3)), draw(st.integers(0, 3)))
    groups = draw(st.integers(2, 4))
    sums, outputs = draw(st.sampled_from([(1, 2), (2, 3), (4, 4)]))
    return core.ConvProblem(
        direction=direction,
        batch=draw(st.integers(1, 4)),
        in_channels=groups * sums,
        out_channels=groups * outputs,
        groups=groups,
        in_size=(draw(st.integers(3, 20)), draw(st.integers(3, 40))),
        kernel=(3, 3),
        stride=(stride, stride),
        pad_begin=begin,
        pad_end=end,
        bias=draw(st.booleans()),
    )


@settings(
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(problems(), st.booleans())
def test_random_shapes(problem: core.ConvProblem, accumulate: bool) -> None:
    try:
        core.context().launches(problem, Choice(NAME))
    except Declined:
        return
    check(core.context(), problem, NAME, accumulate=accumulate)


@pytest.mark.parametrize("direction", DIRECTIONS[:2])
def test_what_is_not_finite_stays_in_its_group(direction: str) -> None:
    problem = core.parse("conv g2 n2 ic6 ih9 iw13 oc4 kh3 kw3 ph1 pw1").with_direction(direction)
    arrays = random_arrays(problem)
    source = "x" if direction == "forward" else "dy"
    channels = arrays[source].shape[1] // 2
    arrays[source][0, 0, 4, 3] = np.nan
    arrays[source][1, channels, 0, 12] = np.inf
    plan = core.context().plan(problem, algorithm=NAME)
    result = np.zeros(plan.arguments[-1].shape, np.float32)
    plan.run(**{a.name: arrays[a.name] for a in plan.arguments if a.role == "in"}, **{OUTPUTS[direction]: result})
    half = result.shape[1] // 2
    broken = np.zeros(result.shape, bool)
    broken[0, :half, 3:6, 2:5] = broken[1, half:, :2, 11:] = True
    assert np.array_equal(~np.isfinite(result), broken)


def test_what_is_not_finite_stays_at_its_taps() -> None:
    problem = core.parse("conv backward_filter g2 n2 ic6 ih9 iw20 oc4 kh3 kw3 ph1 pw1")
    arrays = random_arrays(problem)
    arrays["x"][0, 0, 4, 3] = np.nan
    arrays["x"][1, 3, 0, 19] = np.inf  # the last one of the first row, which two rows and columns of taps meet
    result = np.zeros((4, 3, 3, 3), np.float32)
    core.context().plan(problem, algorithm=NAME).run(x=arrays["x"], dy=arrays["dy"], dw=result)
    broken = np.zeros(result.shape, bool)
    broken[:2, 0] = broken[2:, 0, :2, 1:] = True
    assert np.array_equal(~np.isfinite(result), broken)


@pytest.mark.parametrize("at_end", [False, True], ids=["page-begins", "page-ends"])
@pytest.mark.parametrize(("name", "direction"), cases([*FEW, "f16", "f64", "no-pad", "1d"]))
def test_touches_nothing_beside_its_arrays(name: str, direction: str, at_end: bool) -> None:
    """Each array ends where a page without access begins; a single step over it ends the process."""
    problem = core.parse(LINES[name]).with_direction(direction)
    check_within_pages(problem, NAME, at_end, fitting(problem))
