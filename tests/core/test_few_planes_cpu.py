"""Few channels or outputs on CPU devices, forward and the gradient of the data: against float64, what is declined."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace

import pytest

from clgraft import core
from clgraft.core.errors import Declined
from clgraft.core.operators.conv import few_planes_cpu
from clgraft.core.planning.kernels import has_32_registers
from clgraft.core.session.context import Context
from tests.core.conv_checks import check
from tests.core.guarded_memory import check_within_pages

pytestmark = pytest.mark.skipif(not core.context().device.is_cpu, reason="made for CPU devices")

NAME = "few_planes_cpu"
# rows that end in vectors and in parts of one; last blocks of rows that are not whole; padding beyond the kernel and
# none at all; dilations; kernels of one row and one column
FORWARD = {
    "3x3": "conv forward n3 ic19 ih21 iw45 oc3 kh3 kw3 ph1 pw1 b1",
    "one-output": "conv forward n2 ic37 ih13 iw32 oc1 kh5 kw4 ph2 pw1 qh0 qw3",
    "four-outputs": "conv forward n2 ic5 ih33 iw15 oc4 kh9 kw9 ph4 pw4 b1",
    "pad-beyond": "conv forward n1 ic7 ih5 iw8 oc2 kh3 kw3 ph4 pw5 qh3 qw6",
    "inside": "conv forward n2 ic6 ih19 iw35 oc3 kh3 kw2",
    "dilated": "conv forward n2 ic6 ih22 iw31 oc3 kh3 kw3 ph2 pw3 dh2 dw3 b1",
    "by-taps": "conv forward n2 ic5 ih31 iw47 oc3 kh9 kw5 ph4 pw2 b1",
    "by-taps-dilated": "conv forward n2 ic6 ih43 iw31 oc3 kh7 kw3 ph5 pw3 dh2 dw3",
    "by-taps-stride": "conv forward n2 ic7 ih47 iw63 oc4 kh7 kw4 sh2 sw2 ph3 pw2 b1",
    "by-taps-f16": "conv forward f16 n2 ic5 ih31 iw29 oc3 kh8 kw7 ph4 pw3",
    "a-row": "conv forward n2 ic6 ih9 iw62 oc2 kh1 kw11 pw5",
    "a-column": "conv forward n2 ic6 ih17 iw30 oc2 kh11 kw1 ph5",
    "few-channels": "conv forward n2 ic3 ih21 iw45 oc61 kh3 kw3 ph1 pw1 b1",
    "few-channels-even": "conv forward n2 ic4 ih20 iw32 oc35 kh5 kw3 ph2 pw1 b1",
    "few-channels-by-taps": "conv forward n2 ic3 ih30 iw47 oc31 kh9 kw7 ph4 pw3 b1",
    "few-channels-f16": "conv forward f16 n2 ic2 ih20 iw31 oc33 kh3 kw3 ph1 pw1",
    "few-channels-s2": "conv forward n2 ic3 ih41 iw63 oc34 kh7 kw7 sh2 sw2 ph3 pw3 b1",
    "few-channels-s2-even": "conv forward n2 ic3 ih40 iw62 oc19 kh4 kw3 sh2 sw2 ph1 pw1 qh2 qw0",
    "few-channels-s2-bf16": "conv forward bf16 n2 ic3 ih41 iw63 oc34 kh7 kw7 sh2 sw2 ph3 pw3 b1",
    "few-channels-s2-bf16-even": "conv forward bf16 n2 ic4 ih40 iw62 oc19 kh4 kw4 sh2 sw2 ph1 pw1 qh2 qw0",
    "stride": "conv forward n2 ic21 ih23 iw64 oc3 kh3 kw4 sh2 sw2 ph1 pw2 b1",
    "stride-of-rows": "conv forward n2 ic7 ih23 iw32 oc2 kh3 kw3 sh2 ph1 pw1",
    "stride-bf16": "conv forward bf16 n2 ic21 ih23 iw64 oc3 kh3 kw4 sh2 sw2 ph1 pw2 b1",
    "stride-dilated-bf16": "conv forward bf16 n2 ic7 ih23 iw47 oc4 kh3 kw3 sw2 ph2 pw3 dh2 dw3",
    "stride-rows-dilated-bf16": "conv forward bf16 n2 ic7 ih23 iw47 oc4 kh3 kw3 sw2 ph2 pw3 dh2",
    "stride-dilated": "conv forward n2 ic7 ih23 iw47 oc4 kh3 kw3 sw2 ph2 pw3 dh2 dw3",
    "f16": "conv forward f16 n2 ic9 ih20 iw31 oc3 kh3 kw3 ph1 pw1 b1",
    "bf16": "conv forward bf16 n2 ic9 ih20 iw31 oc3 kh3 kw3 ph1 pw1 b1",
    "f64": "conv forward f64 n2 ic9 ih20 iw31 oc3 kh3 kw3 ph1 pw1 b1",
}
DATA = {
    "data": "conv backward_data n2 ic3 ih21 iw45 oc19 kh3 kw3 ph1 pw1",
    "data-even": "conv backward_data n2 ic2 ih21 iw46 oc7 kh4 kw5 ph1 pw3 qh2 qw0",
    "data-inside": "conv backward_data n3 ic1 ih15 iw33 oc8 kh5 kw5",
    "data-dilated": "conv backward_data n2 ic4 ih22 iw31 oc5 kh3 kw3 ph2 pw1 dh2 dw3",
    "data-cut": "conv backward_data n2 ic3 ih19 iw46 oc5 kh3 kw3 ph4 pw2",
    "data-by-taps": "conv backward_data n2 ic3 ih29 iw45 oc7 kh9 kw8 ph4 pw3",
    "data-f16": "conv backward_data f16 n2 ic3 ih20 iw31 oc9 kh3 kw3 ph1 pw1",
}
PROBLEMS = {**FORWARD, **DATA}


def problem_of(name: str) -> core.ConvProblem:
    if name.startswith("few-channels") and not has_32_registers(core.context().device):
        pytest.skip("many outputs are for processors with 32 registers")
    problem = core.parse(PROBLEMS[name])
    assert isinstance(problem, core.ConvProblem)
    return problem


@pytest.mark.parametrize("name", PROBLEMS)
def test_matches_float64(name: str) -> None:
    check(core.context(), problem_of(name), NAME)
    check(core.context(), problem_of(name), NAME, accumulate=True, seed=3)


@pytest.mark.parametrize("change", [{"compute_units": 16}, {"vector_width": 8}], ids=["16 cores", "256-bit vectors"])
@pytest.mark.parametrize("name", ["3x3", "four-outputs", "data"])
def test_plans_for_other_machines(name: str, change: dict[str, int]) -> None:
    context = Context.on(None)
    context.device = replace(context.device, **change)
    check(context, problem_of(name), NAME)


@pytest.mark.parametrize(
    ("name", "registers", "by_lines"),
    [
        *((name, 32, False) for name in PROBLEMS if "by-taps" in name),
        *((name, 16, True) for name in PROBLEMS if name.startswith("by-taps")),
        ("3x3", 32, True),
        ("few-channels-s2", 32, True),  # a weight is multiplied once
        ("stride-bf16", 32, False),  # pairs
    ],
)
def test_columns_whose_weights_fill_the_registers_are_multiplied_by_taps(
    name: str, registers: int, by_lines: bool
) -> None:
    asked: list[Mapping[str, int]] = []
    pairs = {"has_pair_products": True, "has_slow_pairs": False} if "bf16" in name else {}
    planner = SimpleNamespace(
        device=replace(core.context().device, vector_width=registers // 2, **pairs),
        kernel=lambda file, name, defines, dtype, options=(): asked.append(defines),
    )
    few_planes_cpu.plan(core.parse(PROBLEMS[name]), planner)
    assert [defines["BY_LINES"] for defines in asked] == [by_lines]


@pytest.mark.parametrize("nbytes", [1, 40000], ids=["a channel", "some channels"])
@pytest.mark.parametrize("name", ["3x3", "dilated", "stride-bf16", "data"])
def test_channels_in_several_chunks(name: str, nbytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(few_planes_cpu, "LINE_BYTES", nbytes)
    context = Context.on(None)
    check(context, problem_of(name), NAME)
    check(context, problem_of(name), NAME, accumulate=True)


@pytest.mark.parametrize("at_end", [False, True], ids=["page-begins", "page-ends"])
@pytest.mark.parametrize(
    "name",
    [
        "one-output",
        "few-channels",
        "few-channels-even",
        "few-channels-s2",
        "few-channels-s2-even",
        "few-channels-s2-bf16",
        "few-channels-s2-bf16-even",
        "stride-bf16",
        "stride-dilated",
        "pad-beyond",
        "inside",
        "dilated",
        "by-taps",
        "by-taps-dilated",
        "by-taps-stride",
        "few-channels-by-taps",
        "data-by-taps",
        "data-even",
        "data-cut",
        "f16",
    ],
)
def test_touches_nothing_beside_its_arrays(name: str, at_end: bool) -> None:
    """Each array ends where a page without access begins; a single step over it ends the process."""
    check_within_pages(problem_of(name), NAME, at_end, core.context())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("conv backward_filter n2 ic3 ih20 iw32 oc3 kh3 kw3", "has no backward_filter"),
        ("conv n2 ic5 ih20 iw32 oc6 kh3 kw3", "up to 4 channels or outputs, got 5 and 6"),
        ("conv backward_data n2 ic5 ih20 iw32 oc6 kh3 kw3", "up to 4 channels or outputs, got 6 and 5"),
        ("conv g2 n2 ic4 ih20 iw32 oc4 kh3 kw3", "no groups"),
        ("conv n2 ic3 id5 ih20 iw32 oc3 kd3 kh3 kw3", "one or two spatial axes"),
        ("conv n2 ic3 ih20 iw32 oc3 kh3 kw3 sw3", "stride 1, or 2 forward"),
        ("conv backward_data n2 ic3 ih20 iw32 oc3 kh3 kw3 sh2", "stride 1, or 2 forward"),
        ("conv n2 ic3 ih20 iw32 oc3 kh1 kw1", "several taps"),
        ("conv n2 ic3 ih20 iw32 oc3 kh3 kw12", "up to 11 along an axis"),
        ("conv backward_data n2 ic3 ih19 iw46 oc5 kh3 kw3 ph3 pw3", "more padding"),
        ("conv n0 ic3 ih20 iw32 oc3 kh3 kw3", "nothing to multiply"),
        ("conv n2 ic3 ih20 iw7 oc3 kh3 kw3 ph1 pw1", "lanes empty"),
        ("conv n2 ic3 ih20 iw27 oc8 kh3 kw3 ph1 pw1", "lanes empty"),
        ("conv n2 ic3 iw32 oc3 kw3 pw1", "serves 6 sums of a column, got 1 rows of 3"),
        ("conv n2 ic700 ih20 iw32 oc3 kh3 kw3 ph1 pw1", "bytes of weights"),
        ("conv n2 ic3 ih20 iw90000 oc3 kh3 kw3 ph1 pw1", "bytes of lines do not fit"),
        ("conv n2 ic4 ih60 iw3000 oc64 kh3 kw3 ph1 pw1", "lines of 4 channels"),
    ],
)
def test_what_is_declined(text: str, message: str) -> None:
    context = Context.on(None)
    context.device = replace(context.device, vector_width=16)
    with pytest.raises(Declined, match=message):
        few_planes_cpu.plan(core.parse(text), context.planner)


@pytest.mark.parametrize(
    "layer",
    [
        "backward_data n8 ic3 ih224 iw224 oc64",
        "forward n8 ic64 ih224 iw224 oc3",
        "forward bf16 n2 ic64 ih64 iw64 oc1",
        "forward n8 ic3 ih224 iw224 oc64",
        "forward n8 ic3 ih224 iw224 oc64 sh2 sw2",
        "forward bf16 n8 ic3 ih224 iw224 oc32 sh2 sw2",
    ],
)
def test_first_and_last_layers_choose_it(layer: str) -> None:
    sizes, *strides = layer.split(" sh")
    problem = core.parse(f"conv {sizes} kh3 kw3{' sh' if strides else ''}{''.join(strides)} ph1 pw1")
    chosen, many = core.context().choose(problem).algorithm, "ic3" in sizes and "forward" in sizes
    assert chosen == ("few_channels_cpu" if many and not has_32_registers(core.context().device) else NAME)


def test_many_outputs_are_left_to_pairs() -> None:
    context = Context.on(None)
    context.device = replace(context.device, vector_width=16, has_pair_products=True, has_slow_pairs=False)
    with pytest.raises(Declined, match="leaves pairs"):
        few_planes_cpu.plan(core.parse("conv bf16 n2 ic3 ih20 iw32 oc8 kh3 kw3"), context.planner)


def test_many_outputs_need_registers() -> None:
    context = Context.on(None)
    context.device = replace(context.device, vector_width=8)
    with pytest.raises(Declined, match="32 registers"):
        few_planes_cpu.plan(core.parse(FORWARD["few-channels"]), context.planner)
