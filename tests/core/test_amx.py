"""Products of tiles of bfloat16 by AMX: its roundings computed without the unit here, and by it where there is one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from clgraft import core
from clgraft.core.errors import ProblemError
from clgraft.core.planning.amx import UNIT
from clgraft.core.runtime.toolchains.amx import amx_probes
from clgraft.core.session.context import Context
from tests.core.every_run import Check
from tests.core.guarded_memory import check_within_pages
from tests.core.small_numbers import expect_zeros_for_small_numbers

pytestmark = pytest.mark.skipif(
    not core.context().device.is_cpu or core.context().device.vector_width != 16,
    reason="kernels for CPU devices with vectors of 16",
)

# rows that fill no tile, tiles in several images, odd numbers of pixels, steps that fill no block, one block, none but
# whole ones, strides, groups, dilation, panels in several parts
CONVOLUTIONS = (
    "conv forward bf16 n1 ic14 ih7 iw7 oc19 kh1 kw1",
    "conv forward bf16 g3 n2 ic12 ih5 iw11 oc39 kh1 kw1 b1",
    "conv forward bf16 n2 ic64 ih9 iw11 oc70 kh1 kw1 sh2 sw2",
    "conv forward bf16 n2 ic8 ih9 iw11 oc11 kh3 kw3 sh2 sw2 ph1 pw1",
    "conv forward bf16 n1 ic6 ih13 iw13 oc9 kh9 kw9 ph4 pw4 b1",
    "conv forward bf16 n3 ic34 ih6 iw5 oc33 kh3 kw2 dh2",
    "conv forward bf16 n1 ic2 id4 ih6 iw5 oc3 kd2 kh3 kw3",
    "conv forward bf16 n2 ic1030 ih12 iw11 oc32 kh3 kw3 ph1 pw1 b1",
    "conv backward_data bf16 n3 ic21 ih5 iw5 oc10 kh1 kw1",
    "conv backward_data bf16 n1 ic64 ih5 iw5 oc98 kh1 kw1",
    "conv backward_data bf16 g2 n2 ic10 ih9 iw8 oc12 kh3 kw3 ph1 pw1 dh2 dw2",
    "conv backward_data bf16 n1 ic33 ih7 iw8 oc1200 kh2 kw3 ph1 pw1",
    "conv backward_data bf16 n2 ic35 ih9 iw11 oc64 kh3 kw3 sh2 sw2 ph1 pw1",
    "conv backward_data bf16 g2 n1 ic20 ih10 iw9 oc64 kh1 kw1 sh2 sw2",
    "conv backward_data bf16 n1 ic5 ih13 iw40 oc2048 kh5 kw4 sh2 sw3 ph2 pw1",
    "conv backward_data bf16 n3 ic64 ih7 iw7 oc32 kh2 kw3 sw2 dh2 pw1",
    "conv backward_filter bf16 n3 ic7 ih7 iw7 oc20 kh1 kw1",
    "conv backward_filter bf16 n1 ic1 ih1 iw1 oc1 kh1 kw1",
    "conv backward_filter bf16 g2 n2 ic70 ih9 iw11 oc66 kh3 kw3 ph1 pw1",
    "conv backward_filter bf16 n2 ic33 ih29 iw30 oc35 kh3 kw2 sh2 sw2 ph1 dw2",
    "conv backward_filter bf16 n5 ic64 ih16 iw16 oc64 kh1 kw1",
    "conv backward_filter bf16 n1 ic2 id4 ih6 iw5 oc3 kd2 kh3 kw3",
)


@pytest.fixture(scope="module")
def emulated() -> Context:
    """A context that computes what the unit does."""
    context = Context.on(None)
    context.device = replace(context.device, has_amx=True, matrix_units=())
    return context


@pytest.mark.parametrize("text", CONVOLUTIONS)
def test_matches_float64(text: str, emulated: Context) -> None:
    """The unit, where there is one, leaves the same bits."""
    problem = core.parse(text)
    check = Check(problem)

    def run(context: Context) -> list[bytes]:
        plan = context.plan(problem, "cpu_amx")
        results = check.run(plan)
        check.expect_right(plan, results)
        check.expect_added(plan, results)
        return [result.tobytes() for result in results.values()]

    found = run(emulated)
    if core.context().device.has_amx:
        assert run(core.context()) == found


@pytest.mark.parametrize("at_end", [False, True], ids=["page begins", "page ends"])
@pytest.mark.parametrize("text", CONVOLUTIONS[::2])
def test_products_touch_nothing_beside_their_arrays(text: str, at_end: bool, emulated: Context) -> None:
    check_within_pages(core.parse(text), "cpu_amx", at_end, emulated)


def test_what_is_not_finite_stays_in_its_places(emulated: Context) -> None:
    """Steps beyond the last one, and rows beyond the last, meet no number that is stored."""
    problem = core.parse("conv forward bf16 n1 ic6 ih3 iw11 oc3 kh1 kw1")
    x, w = (np.ones(argument.shape, argument.dtype) for argument in problem.arguments()[:2])
    x[0, 5, 1, 4], w[2] = np.nan, np.inf
    y = np.zeros((1, 3, 3, 11), x.dtype)
    for context in (emulated, core.context()):
        if context.device.has_amx:
            context.plan(problem, "cpu_amx").run(x=x, w=w, y=y)
            found = y.astype(np.float32)
            assert np.isnan(found[0, :, 1, 4]).all() and np.isnan(found).sum() == 3
            assert np.isinf(found[0, 2]).sum() == 32 and (np.isnan(found) | np.isinf(found) | (found == 6)).all()


@pytest.mark.parametrize("direction", ["forward", "backward_data", "backward_filter"])
def test_last_steps_meet_nothing_that_local_memory_held_before(direction: str, emulated: Context) -> None:
    before = core.parse(f"conv {direction} bf16 n2 ic256 ih48 iw48 oc64 kh1 kw1")
    problem = core.parse(f"conv {direction} bf16 n1 ic6 ih3 iw11 oc6 kh1 kw1")
    summed = 33 if direction == "backward_filter" else 6
    for context in (emulated, core.context()):
        if context.device.has_amx:
            nothing = {a.name: np.full(a.shape, np.nan, a.dtype) for a in before.arguments()}
            context.plan(before, "cpu_amx").run(**nothing)
            arrays = {a.name: np.ones(a.shape, a.dtype) for a in problem.arguments()}
            context.plan(problem, "cpu_amx").run(**arrays)
            assert (arrays[problem.arguments()[-1].name].astype(np.float32) == summed).all()


def test_small_numbers_count_as_zeros(emulated: Context) -> None:
    for context in (emulated, core.context()):
        if context.device.has_amx:
            expect_zeros_for_small_numbers(context, "cpu_amx")


def test_declines_what_it_does_not_serve(emulated: Context) -> None:
    plain, narrow = Context.on(None), Context.on(None)
    plain.device = replace(plain.device, has_amx=False, matrix_units=())
    narrow.device = replace(emulated.device, vector_width=8)
    served = "conv forward bf16 n1 ic14 ih7 iw7 oc19 kh1 kw1"
    for context, text in (
        (plain, served),
        (narrow, served),
        (emulated, served.replace("bf16", "f16")),
        (emulated, served.replace("ic14", "ic13")),
        (emulated, "conv backward_data bf16 n2 ic10 ih9 iw11 oc18 kh3 kw3 sh2 sw2 ph1 pw1"),
        (emulated, "conv backward_filter n3 ic8 ih7 iw7 oc20 kh1 kw1"),
    ):
        with pytest.raises(ProblemError, match="cpu_amx"):
            context.plan(core.parse(text), "cpu_amx")
    assert emulated.foreseen(core.parse(served)) == "cpu_amx"
    assert emulated.foreseen(core.parse("conv forward bf16 n8 ic64 ih56 iw56 oc64 kh3 kw3 ph1 pw1")) == "cpu_amx"


def test_only_devices_with_the_unit_are_probed() -> None:
    device = replace(core.context().device, matrix_units=())
    assert not list(amx_probes(device))
    (probe,) = amx_probes(replace(device, matrix_units=(UNIT,)))
    assert probe.in_child and probe.defines["AMX"] == 2
