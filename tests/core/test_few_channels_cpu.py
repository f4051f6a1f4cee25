"""First layers on CPU devices, forward and the gradient of the weights: against float64, and what is declined."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clgraft import core
from clgraft.core.errors import Declined
from clgraft.core.operators.conv import few_channels_cpu
from clgraft.core.session.context import Context
from tests.core.conv_checks import check
from tests.core.guarded_memory import check_within_pages

pytestmark = pytest.mark.skipif(not core.context().device.is_cpu, reason="made for CPU devices")

NAME = "few_channels_cpu"
DIRECTIONS = ("forward", "backward_filter")
# parts of pixels that end in rows, in vectors and in neither; outputs that leave lanes empty; asymmetric padding beyond
# the kernel; one axis; a dilation of rows; strides beyond the kernel
PROBLEMS = {
    "7x7-s2": "conv n2 ic3 ih45 iw61 oc64 kh7 kw7 sh2 sw2 ph3 pw3 b1",
    "11x11-s4": "conv n2 ic3 ih63 iw63 oc60 kh11 kw11 sh4 sw4 ph2 pw2 b1",
    "3x3-s2-32": "conv n3 ic3 ih33 iw70 oc32 kh3 kw3 sh2 sw2 ph1 pw1",
    "three-tiles": "conv n2 ic2 ih15 iw17 oc149 kh5 kw4 sw3 ph2 pw1 qh0 qw3 b1",
    "pad-beyond": "conv n1 ic4 ih5 iw6 oc48 kh3 kw3 ph4 pw5 qh3 qw6",
    "stride-beyond": "conv n2 ic1 ih19 iw37 oc44 kh2 kw3 sh5 sw6",
    "dilate-rows": "conv n2 ic3 ih21 iw18 oc64 kh5 kw3 ph4 dh2",
    "one-column": "conv n5 ic3 ih23 iw1 oc64 kh3 kw1 ph1",
    "many-channels": "conv n2 ic37 ih23 iw31 oc56 kh3 kw3 sh2 sw2 ph1 pw1 b1",
    "f16": "conv f16 n2 ic3 ih19 iw22 oc64 kh5 kw5 sh2 sw2 ph2 pw2 b1",
    "bf16": "conv bf16 n2 ic3 ih19 iw22 oc64 kh5 kw5 sh2 sw2 ph2 pw2 b1",
    "f64": "conv f64 n2 ic3 ih19 iw22 oc64 kh5 kw5 sh2 sw2 ph2 pw2 b1",
}


def problem_of(name: str, direction: str) -> core.ConvProblem:
    problem = core.parse(PROBLEMS[name]).with_direction(direction)
    assert isinstance(problem, core.ConvProblem)
    return problem


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", PROBLEMS)
def test_matches_float64(name: str, direction: str) -> None:
    problem = problem_of(name, direction)
    check(core.context(), problem, NAME)
    check(core.context(), problem, NAME, accumulate=True, seed=3)


@pytest.mark.parametrize("change", [{"compute_units": 16}, {"vector_width": 8}], ids=["16 cores", "256-bit vectors"])
def test_plans_for_other_machines(change: dict[str, int]) -> None:
    context = Context.on(None)
    context.device = replace(context.device, **change)
    for direction in DIRECTIONS:
        check(context, problem_of("7x7-s2", direction), NAME)


def test_channels_in_several_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(few_channels_cpu, "CHUNK_BYTES", 1)  # a channel each
    context = Context.on(None)
    check(context, problem_of("7x7-s2", "forward"), NAME)
    check(context, problem_of("three-tiles", "forward"), NAME, accumulate=True)


@pytest.mark.parametrize("at_end", [False, True], ids=["page-begins", "page-ends"])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", ["11x11-s4", "three-tiles", "stride-beyond", "f16", "bf16"])
def test_touches_nothing_beside_its_arrays(name: str, direction: str, at_end: bool) -> None:
    """Each array ends where a page without access begins; a single step over it ends the process."""
    check_within_pages(problem_of(name, direction), NAME, at_end, core.context())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("conv backward_data n2 ic3 ih20 iw20 oc64 kh3 kw3", "has no backward_data"),
        ("conv n2 ic5 ih20 iw20 oc64 kh3 kw3", "up to 4 channels"),
        ("conv n2 ic5 ih20 iw20 oc65 kh3 kw3 sh2 sw2", "up to 64 outputs"),
        ("conv n2 ic1024 ih14 iw14 oc64 kh3 kw3 sh2 sw2 ph1 pw1", "rows leave too many empty"),
        ("conv g2 n2 ic4 ih20 iw20 oc64 kh3 kw3", "no groups"),
        ("conv n2 ic3 id5 ih20 iw20 oc64 kd3 kh3 kw3", "one or two spatial axes"),
        ("conv n2 ic3 ih20 iw20 oc64 kh1 kw1 sh2 sw2", "several taps"),
        ("conv n2 ic3 ih40 iw40 oc64 kh1 kw17", "up to 16 taps"),
        ("conv n2 ic3 ih20 iw20 oc64 kh3 kw3 dw2", "neighbours in a row"),
        ("conv n2 ic3 ih20 iw20 oc17 kh3 kw3", "lanes empty"),
        ("conv n1 ic3 iw9 oc64 kw3", "rows of pixels are too few"),
        ("conv n4096 ic3 iw90000 oc64 kw3", "do not fit"),
    ],
)
def test_what_is_declined(text: str, message: str) -> None:
    context = Context.on(None)
    context.device = replace(context.device, compute_units=2)
    with pytest.raises(Declined, match=message):
        few_channels_cpu.plan(core.parse(text), context.planner)


def test_first_layers_choose_it() -> None:
    for direction in DIRECTIONS:
        for layer in ("oc64 kh11 kw11 sh4 sw4 ph2 pw2", "oc48 kh3 kw3 sh3 sw3 ph1 pw1"):
            problem = core.parse(f"conv {direction} n8 ic3 ih224 iw224 {layer}")
            assert core.context().choose(problem).algorithm == NAME
