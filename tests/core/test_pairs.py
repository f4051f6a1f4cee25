"""Products of pairs of bfloat16 on CPU devices, computed without the processor's instruction here, and with it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from clgraft import core
from clgraft.core.errors import ProblemError
from clgraft.core.operators.conv.gemm_cpu import gemm, pairs, phases
from clgraft.core.planning.pairs import WAYS
from clgraft.core.runtime import probes
from clgraft.core.runtime.toolchains.pairs import pair_probes
from clgraft.core.session.context import Context
from tests.core.every_run import Check
from tests.core.guarded_memory import check_within_pages
from tests.core.pair_contexts import emulated_pairs
from tests.core.small_numbers import expect_zeros_for_small_numbers

pytestmark = pytest.mark.skipif(not core.context().device.is_cpu, reason="kernels for CPU devices")

# rows that fill no tile, tiles in several images, odd numbers of pixels, taps that are transposed or not, strides,
# groups, dilation, and one long row
CONVOLUTIONS = (
    "conv forward bf16 n1 ic14 ih7 iw7 oc19 kh1 kw1",
    "conv forward bf16 g3 n2 ic12 ih5 iw11 oc39 kh1 kw1 b1",
    "conv forward bf16 n2 ic8 ih9 iw11 oc11 kh3 kw3 sh2 sw2 ph1 pw1",
    "conv forward bf16 n1 ic6 ih13 iw13 oc9 kh9 kw9 ph4 pw4",
    "conv backward_data bf16 n3 ic21 ih5 iw5 oc10 kh1 kw1",
    "conv backward_data bf16 g2 n2 ic10 ih9 iw8 oc12 kh3 kw3 ph1 pw1 dh2 dw2",
    "conv backward_data bf16 n2 ic10 ih9 iw11 oc18 kh3 kw3 sh2 sw2 ph1 pw1",
    "conv backward_data bf16 g2 n1 ic6 ih11 iw11 oc8 kh4 kw5 sh3 sw2 ph1 pw2",
    "conv backward_filter bf16 n3 ic9 ih7 iw7 oc20 kh1 kw1",
    "conv backward_filter bf16 g2 n2 ic6 ih9 iw13 oc34 kh3 kw3 sh2 sw2 ph1 pw1",
    "conv backward_filter bf16 n3 ic21 ih14 iw23 oc50 kh1 kw1",
    "conv backward_filter bf16 n70 ic70 ih3 iw6 oc41 kh1 kw1",
    "conv backward_filter bf16 g3 n2 ic15 ih10 iw11 oc39 kh1 kw1",
    "conv backward_filter bf16 n2 ic13 ih33 iw39 oc40 kh1 kw1 sh3 sw2",
)
DENSE = ("dense forward bf16 n40 i70 o33 b1", "dense backward_data bf16 n11 i30 o66 t1")


@pytest.fixture(scope="module")
def emulated() -> Context:
    """A context that computes in pairs by float32 arithmetic."""
    return emulated_pairs()


@pytest.fixture(scope="module")
def instructed() -> Context | None:
    """A context that computes in pairs by the processor's instruction, however fast that is; None where it has none."""
    context = Context.on(None)
    context.device = replace(context.device, has_slow_pairs=False)
    return context if context.device.has_pair_products else None


def settings_of(problem: core.Problem, context: Context) -> list[dict[str, int | str]]:
    """Return settings that are tried: those of filters name a split."""
    if problem.kind == "dense":
        return [{}]
    if "backward_filter" in str(problem):
        return [dict(settings) for settings in pairs.candidates(problem, context)][1:12:5]
    if phases.has_phases(problem):
        return [{"vectors": 3}, {"vectors": 1, "merged": 1, "shifted": 1}]
    return [{"vectors": n} for n in gemm.tile_vectors(problem, context.planner, gemm.product_grid(problem)) if n != 2]


def run(problem: core.Problem, context: Context, settings: dict[str, int | str], check: Check) -> list[np.ndarray]:
    """Run into NaN and onto numbers, and hold both to float64."""
    steps = context.launches(problem, core.tuning.Choice("cpu_pairs", settings))
    plan = context.plan_launches(problem, steps, "cpu_pairs")
    results = check.run(plan)
    check.expect_right(plan, results)
    check.expect_added(plan, results)
    return list(results.values())


@pytest.mark.parametrize("text", CONVOLUTIONS + DENSE)
def test_matches_float64(text: str, emulated: Context, instructed: Context | None) -> None:
    """The processor's instruction, where kernels have it, leaves the same bits as float32 arithmetic."""
    problem = core.parse(text)
    check = Check(problem)
    for settings in settings_of(problem, emulated):
        found = run(problem, emulated, settings, check)
        if instructed:
            for one, other in zip(found, run(problem, instructed, settings, check)):
                assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("conv forward bf16 n2 ic3 ih21 iw23 oc32 kh3 kw3 sh2 sw2 ph1 pw1 b1", "few_channels_cpu"),
        ("conv forward bf16 n1 ic1 ih9 iw37 oc61 kh3 kw3 ph1 pw1", "few_channels_cpu"),
        ("conv forward bf16 n2 ic17 ih19 iw17 oc64 kh3 kw3 sh2 sw2 ph1 pw1", "few_channels_cpu"),
        ("conv forward bf16 n2 ic3 ih21 iw63 oc4 kh3 kw3 sh2 sw2 ph1 pw1 b1", "few_planes_cpu"),
        ("conv forward bf16 n1 ic5 ih20 iw64 oc3 kh5 kw4 sh2 sw2 ph2 pw3 qh1 qw0", "few_planes_cpu"),
        ("conv forward bf16 g5 n3 ic5 ih7 iw7 oc5 kh3 kw3 ph1 pw1", "depthwise_fixed"),
        ("conv forward bf16 g5 n3 ic5 ih14 iw14 oc5 kh3 kw3 sh2 sw2 ph1 pw1", "depthwise_fixed"),
        ("conv forward bf16 g3 n2 ic3 ih9 iw70 oc3 kh3 kw3 ph1 pw1", "depthwise_rows"),
    ],
)
def test_other_kernels_round_as_the_processor(
    text: str, name: str, emulated: Context, instructed: Context | None
) -> None:
    """First layers multiply pairs of channels or of columns; depthwise ones round what they multiplied one by one."""
    problem = core.parse(text)
    check = Check(problem)

    def found(context: Context) -> np.ndarray:
        plan = context.plan(problem, name)
        results = check.run(plan)
        check.expect_right(plan, results)
        check.expect_added(plan, results)
        return results["y"]

    expected = found(emulated)
    if instructed:
        assert found(instructed).tobytes() == expected.tobytes()


def test_first_layers_keep_what_is_not_finite_in_its_places(emulated: Context) -> None:
    """The last one of an odd number of channels is half of a pair, and an element that no tap meets has no part."""
    problem = core.parse("conv forward bf16 n1 ic3 ih2 iw34 oc64 kh1 kw2 sh1 sw2")
    x, w = (np.ones(argument.shape, argument.dtype) for argument in problem.arguments()[:2])
    x[0, 2, 1, 5] = np.inf
    y = np.full((1, 64, 2, 17), np.nan, x.dtype)
    emulated.plan(problem, "few_channels_cpu").run(x=x, w=w, y=y)
    assert (y[..., 1, 2] == np.inf).all()
    y[..., 1, 2] = 6
    assert (y == 6).all()


def test_last_taps_of_rows_keep_what_is_not_finite_in_its_places(emulated: Context) -> None:
    """The last one of an odd number of taps is half of a pair, whose other column belongs to the next pixel."""
    problem = core.parse("conv forward bf16 n1 ic2 ih6 iw33 oc4 kh1 kw3 sw2")
    x, w = (np.ones(argument.shape, argument.dtype) for argument in problem.arguments()[:2])
    x[0, 1, 1, 5], x[0, 0, 3, 8] = np.inf, np.nan
    y = np.full((1, 4, 6, 16), -1, x.dtype)
    emulated.plan(problem, "few_planes_cpu").run(x=x, w=w, y=y)
    assert (y[..., 1, 2] == np.inf).all() and np.isnan(y[..., 3, 3:5].astype(np.float32)).all()
    y[..., 1, 2] = y[..., 3, 3:5] = 6
    assert (y == 6).all()


@pytest.mark.parametrize("at_end", [False, True], ids=["page begins", "page ends"])
@pytest.mark.parametrize("text", CONVOLUTIONS[::2])
def test_products_touch_nothing_beside_their_arrays(text: str, at_end: bool, emulated: Context) -> None:
    check_within_pages(core.parse(text), "cpu_pairs", at_end, emulated)


def test_what_is_not_finite_stays_in_its_places(emulated: Context) -> None:
    """An odd number of pixels leaves half of a pair empty, which meets no number."""
    problem = core.parse("conv backward_filter bf16 n1 ic2 ih3 iw3 oc3 kh1 kw1")
    x, dy = (np.ones(argument.shape, argument.dtype) for argument in problem.arguments()[:2])
    x[0, 1, 2, 2] = np.inf
    dw = np.full((3, 2, 1, 1), np.nan, x.dtype)
    emulated.plan(problem, "cpu_pairs").run(x=x, dy=dy, dw=dw)
    assert (dw[:, 0] == 9).all() and (dw[:, 1] == np.inf).all()


def test_small_numbers_count_as_zeros(emulated: Context, instructed: Context | None) -> None:
    for context in filter(None, (emulated, instructed)):
        expect_zeros_for_small_numbers(context, "cpu_pairs")


def test_declines_what_it_does_not_serve(emulated: Context) -> None:
    plain = Context.on(None)
    plain.device = replace(plain.device, has_pair_products=False, matrix_units=())
    slow = Context.on(None)
    slow.device = replace(emulated.device, has_slow_pairs=True)
    served = "conv forward bf16 n1 ic14 ih7 iw7 oc19 kh1 kw1"
    for context, text in (
        (plain, served),
        (slow, served),
        (emulated, served.replace("bf16", "f16")),
        (emulated, served.replace("ic14", "ic13")),
        (emulated, "conv forward bf16 n8 ic64 ih56 iw56 oc64 kh3 kw3 ph1 pw1"),  # Winograd's method
        (emulated, "dense forward bf16 n40 i71 o33"),
    ):
        with pytest.raises(ProblemError, match="cpu_pairs"):
            context.plan(core.parse(text), "cpu_pairs")
    assert emulated.plan(core.parse(served)).algorithm == "cpu_pairs"
    assert plain.plan(core.parse(served)).algorithm == slow.plan(core.parse(served)).algorithm == "cpu_gemm"


def test_first_layers_multiply_floats_where_pairs_are_slow(emulated: Context) -> None:
    """Those are right, and no macro asks for pairs."""
    slow = Context.on(None)
    slow.device = replace(emulated.device, has_slow_pairs=True)
    problem = core.parse("conv forward bf16 n2 ic3 ih21 iw23 oc32 kh3 kw3 sh2 sw2 ph1 pw1 b1")
    check = Check(problem)
    plan = slow.plan(problem, "few_channels_cpu")
    check.expect_right(plan, check.run(plan))
    for context, asked in ((slow, False), (emulated, True)):
        steps = context.launches(problem, core.tuning.Choice("few_channels_cpu", {}))
        assert all(("#define PAIRED 1" in launch.kernel.source) == asked for launch in steps.launches)


def test_strided_layers_are_left_to_pairs(emulated: Context) -> None:
    """Winograd's method has more products at stride 2 than it saves next to pairs, not so at stride 1."""
    layer = "conv forward bf16 n8 ic128 ih56 iw56 oc128 kh3 kw3{} ph1 pw1"
    assert emulated.foreseen(core.parse(layer.format(" sh2 sw2"))) == "cpu_pairs"
    assert emulated.foreseen(core.parse(layer.format(""))) == "winograd"


def test_only_devices_with_the_instruction_are_probed() -> None:
    device = replace(core.context().device, matrix_units=())
    assert not list(pair_probes(device))
    for unit, number in WAYS.items():
        (probe,) = pair_probes(replace(device, matrix_units=(unit,)))
        assert probe.in_child and probe.defines["PAIRED"] == number


def test_only_problems_of_bfloat16_find_out(monkeypatch: pytest.MonkeyPatch) -> None:
    tried, unit = [], next(iter(WAYS))
    monkeypatch.setattr(probes, "_works", lambda _, kernel, probe: bool(tried.append(probe.field)))
    context = Context.on(None)
    later = [probe.field for probe in context.toolchain.probes(context.device) if probe.later]
    (probe,) = pair_probes(replace(context.device, matrix_units=(unit,)))
    # with a name of its own, so that no other test has chosen anything for it
    given = {"name": "unknown", "has_pair_products": probes.Later(context, probe)}
    context.device = replace(context.device, **given)
    assert context.device == replace(context.device, has_pair_products=probes.Later(context, probe))
    for text in (CONVOLUTIONS[0], DENSE[0]):
        context.choose(core.parse(text.replace(" bf16", "")))
        assert context.device in {context.device}
    assert not tried
    context.choose(core.parse(DENSE[0]))
    assert set(tried) <= {"has_pair_products", *later}
    assert "has_pair_products" in tried
    assert (bool(context.device.has_pair_products), repr(context.device.has_pair_products)) == (False, "False")
