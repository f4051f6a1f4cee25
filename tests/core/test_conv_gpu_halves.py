"""Products with operands of 16 bits on matrix units, computed through local memory here: all directions, both units."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from clgraft import core
from clgraft.core.errors import Declined
from clgraft.core.operators.conv.gemm_gpu import halves
from clgraft.core.operators.conv.gemm_gpu.halves import MMA, WGMMA, Choice, Halves, HalvesTile, Product, tiles
from clgraft.core.problem import ceil_div
from clgraft.core.runtime import probes
from clgraft.core.runtime.toolchains import nvidia
from clgraft.core.session.context import Context
from tests.core.conv_checks import an_h200, check
from tests.core.every_run import Check

FORMS = {"wgmma": WGMMA, "mma": MMA}
SMALLEST = {
    "wgmma": HalvesTile("wgmma", 64, 64, 3, 0, 64, 0, 1, 1.0, 1.0),
    "mma": HalvesTile("mma", 64, 64, 2, 0, 32, 32, 1, 1.0, 1.0),
}
# problem: parts
PROBLEMS = {
    "conv forward f16 n2 ic24 ih7 iw9 oc21 kh3 kw3 ph1 pw1 b1 layout=nhwc": 1,
    "conv forward bf16 n3 ic136 ih4 iw5 oc72 kh1 kw1 layout=nhwc": 2,
    "conv forward f16 g2 n1 ic32 id3 ih4 iw5 oc48 kd2 kh3 kw2 pd1 pw1 sh2 dw2 layout=nhwc": 1,
    "conv forward f16 n2 ic3 ih13 iw11 oc16 kh5 kw5 sh2 sw2 ph2 pw2 b1 layout=nhwc": 1,
    "conv forward f16 n2 ic20 ih5 iw6 oc24 kh3 kw3 ph1 pw1 b1": 1,
    "conv backward_data bf16 n1 ic16 ih5 iw7 oc24 kh1 kw3 pw1": 1,
    "conv backward_filter f16 n2 ic20 id2 ih5 iw7 oc24 kd1 kh2 kw3": 2,
    "conv backward_data f16 n2 ic16 ih7 iw8 oc40 kh3 kw3 sh2 sw2 ph1 pw1 layout=nhwc": 1,
    "conv backward_data bf16 g2 n1 ic32 ih6 iw5 oc32 kh3 kw3 ph1 pw1 layout=nhwc": 3,
    "conv backward_data f16 n1 ic80 iw70 oc8 kw1 sw3 layout=nhwc": 1,
    "conv backward_filter f16 n2 ic16 ih9 iw10 oc24 kh3 kw3 ph1 pw1 layout=nhwc": 3,
    "conv backward_filter bf16 n3 ic6 ih8 iw9 oc11 kh3 kw3 sh2 sw2 layout=nhwc": 2,
    "conv backward_filter f16 g2 n2 ic32 ih6 iw7 oc144 kh1 kw1 layout=nhwc": 1,
    "conv backward_filter f16 n6 ic72 ih13 iw14 oc16 kh1 kw1 layout=nhwc": 9,
}


@pytest.fixture
def forced(monkeypatch: pytest.MonkeyPatch) -> list:
    """A list of a tile and a number of parts, which are then chosen for every product, on every device."""
    wanted: list = []

    def choose(product: Product, candidates: list[HalvesTile], units: int) -> Choice:
        tile, parts = wanted
        steps = ceil_div(product.steps, parts)
        return Choice(tile, ceil_div(product.steps, steps) if steps else 1, steps)

    monkeypatch.setattr(halves, "choose", choose)
    monkeypatch.setattr(halves, "LAUNCH", 0)  # phases of strides one by one
    monkeypatch.setattr(Halves, "runs_on", lambda self, device: True)
    return wanted


@pytest.mark.parametrize("units", FORMS)
@pytest.mark.parametrize("text", PROBLEMS)
def test_matches_float64(text: str, units: str, forced: list) -> None:
    forced[:] = [SMALLEST[units], PROBLEMS[text]]
    check(
        Context.on(None),
        core.parse(text),
        FORMS[units].NAME,
        accumulate="n2" in text,
        rounded_first="layout" not in text,
    )


PHASES = (
    "conv backward_data f16 n2 ic16 ih7 iw8 oc40 kh3 kw3 sh2 sw2 ph1 pw1 layout=nhwc",
    "conv backward_data bf16 g2 n1 ic32 id3 ih6 iw9 oc144 kd2 kh3 kw5 sd2 sw3 pw2 dh2 dw2 layout=nhwc",
    "conv backward_data f16 n2 ic72 ih9 iw6 oc24 kh1 kw1 sh2 sw2 layout=nhwc",
    "conv backward_data f16 n2 ic24 ih5 iw1 oc16 kh3 kw1 sh3 sw2 ph2",
    "conv backward_data bf16 n2 ic16 ih9 iw13 oc24 kh2 kw3 sh2 sw2 pw1 layout=nhwc",  # rows end in another tile
)


@pytest.mark.parametrize("text", PHASES)
def test_phases_together_match_float64(text: str, forced: list, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(halves, "LAUNCH", 1e12)
    units = "wgmma" if "bf16" in text else "mma"
    forced[:] = [SMALLEST[units], 1]
    problem = core.parse(text)
    context = Context.on(None)
    check(context, problem, FORMS[units].NAME, accumulate="n2" in text, rounded_first="layout" not in text)
    last = FORMS[units].plan(replace(problem, layout="nhwc"), context.planner)
    assert len(last.launches) == 1


EPILOGUES = (
    "fused conv backward_data f16 n2 ic16 ih7 iw8 oc24 kh3 kw3 sh2 sw2 layout=nhwc with whole whole :"
    " y0 = x2 > 0 ? x0 + x1 : 0",
    "fused conv backward_data bf16 n2 ic72 ih7 iw9 oc24 kh1 kw1 with whole : y0 = x1 > 0 ? x0 : 0",
    "fused conv backward_data f16 n1 ic24 ih6 iw7 oc16 kh3 kw2 ph1 layout=nhwc with whole : y0 = x1 > 0 ? x0 : 0",
    "fused conv forward f16 n2 ic24 ih7 iw9 oc40 kh3 kw3 ph1 pw1 b1 layout=nhwc with channel whole : y0 = x0 * x1 + x2",
)


@pytest.mark.parametrize("text", EPILOGUES)
def test_epilogues_match_float64(text: str, forced: list, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of sums and of data gradients, whose phases run one by one or together, and by windows."""
    case = Check(core.parse(text))
    forced[:] = [SMALLEST["mma"], 1]
    for launch, windows in ((0, None), (1e12, None), (0, (SMALLEST["mma"], 3, 1))):
        monkeypatch.setattr(halves, "LAUNCH", launch)
        monkeypatch.setattr(halves._HalvesBuilder, "choose_windows", lambda *sizes, windows=windows: windows)
        context = Context.on(None)
        context.device = replace(context.device, is_cpu=False, is_gpu=True)
        plan = context.plan(case.problem, "in_kernel")
        case.expect_right(plan, case.run(plan))
        case.expect_added(plan, case.run(plan))


WINDOWS = {
    "conv forward f16 n3 ic24 ih7 iw9 oc21 kh3 kw3 ph1 pw1 b1 layout=nhwc": 3,
    "conv forward bf16 g2 n2 ic160 ih6 iw5 oc48 kh3 kw2 ph2 qh0 dh2 layout=nhwc": 3,
    "conv forward f16 n1 ic136 iw300 oc72 kw3 layout=nhwc": 3,
    "conv backward_data f16 n2 ic40 ih7 iw8 oc72 kh3 kw3 ph1 pw1 layout=nhwc": 4,
    "conv backward_data bf16 n2 ic16 ih9 iw8 oc136 kh5 kw3 layout=nhwc": 3,
}


@pytest.mark.parametrize("units", FORMS)
@pytest.mark.parametrize("text", WINDOWS)
def test_windows_match_float64(text: str, units: str, forced: list, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = replace(SMALLEST[units], pending=int(units == "wgmma" and WINDOWS[text] > 3)), WINDOWS[text], 1
    monkeypatch.setattr(halves._HalvesBuilder, "choose_windows", lambda *sizes: chosen)
    check(Context.on(None), core.parse(text), FORMS[units].NAME, accumulate="n2" in text)


@pytest.mark.exhaustive
@pytest.mark.parametrize("tile", [*tiles("wgmma"), *tiles("mma")], ids=lambda tile: f"{tile.units}-{tile.name}")
@pytest.mark.parametrize("direction", ["forward", "backward_data", "backward_filter"])
def test_every_tile_matches_float64(tile: HalvesTile, direction: str, forced: list) -> None:
    forced[:] = [tile, 1]
    problem = core.parse("conv f16 n2 ic136 ih11 iw13 oc200 kh3 kw3 ph1 pw1 layout=nhwc").with_direction(direction)
    check(Context.on(None), problem, FORMS[tile.units].NAME)


def test_addresses_that_are_no_multiples_of_a_vector(forced: list) -> None:
    forced[:] = [SMALLEST["mma"], 1]
    problem = core.parse("conv forward f16 n1 ic16 ih5 iw6 oc24 kh3 kw3 ph1 pw1 layout=nhwc")
    rng = np.random.default_rng(0)
    x, w, y = (np.empty(np.prod(a.shape) + 1, np.float16)[1:].reshape(a.shape) for a in problem.arguments())
    x[...], w[...], y[...] = rng.standard_normal(x.shape), rng.standard_normal(w.shape), np.nan
    Context.on(None).plan(problem, MMA.NAME).run(x=x, w=w, y=y)
    exact = problem.reference({"x": x, "w": w})["y"]
    assert np.abs(y - exact).max() <= 2**-10 * np.abs(exact).max()


@pytest.mark.parametrize("units", FORMS)
def test_units_are_checked(units: str, monkeypatch: pytest.MonkeyPatch) -> None:
    context = core.context()
    monkeypatch.setenv("CLGRAFT_CACHE", "off")
    probe = nvidia.halves_probe(context.device, units)
    wrong = replace(probe, expected=probe.expected + 1)
    broken = replace(probe, defines={**probe.defines, "TILE_N": "("})
    for one, works in ((probe, True), (wrong, False), (broken, False)):
        monkeypatch.setattr(probes, "_known", {})
        assert probes.works(context, one) is works


def test_what_is_declined(monkeypatch: pytest.MonkeyPatch) -> None:
    context = Context.on(None)
    monkeypatch.setattr(Halves, "runs_on", lambda self, device: device is None)
    for text, reason in {
        "conv forward n1 ic16 ih5 iw6 oc24 kh3 kw3 layout=nhwc": "is for 16 bits",
        "conv forward f16 n1 ic16 ih5 iw6 oc24 kh3 kw3": "needs matrix units with mma",
        "conv backward_bias f16 n1 ic16 ih5 iw6 oc24 kh3 kw3 layout=nhwc": "has no backward_bias",
    }.items():
        with pytest.raises(Declined, match=reason):
            MMA.plan(core.parse(text), context.planner)
    monkeypatch.setattr(Halves, "runs_on", lambda self, device: True)
    with pytest.raises(Declined, match="groups have multiples of 8 channels, at least 16"):
        MMA.plan(core.parse("conv forward f16 n1 g4 ic32 ih5 iw6 oc32 kh3 kw3"), context.planner)


def test_the_smallest_estimate_is_chosen() -> None:
    """A tile for every unit: more parts where the depth is long and there are few tiles."""
    device = replace(an_h200(), has_wgmma_halves=True, has_mma_halves=True)
    candidates = halves.fitting("wgmma", device)
    assert len(candidates) == len(tiles("wgmma"))
    assert halves.choose(Product(64 * 3136, 64, 576, 1), candidates, 132).parts == 1
    assert halves.choose(Product(64, 576, 64 * 3136, 1), candidates, 132).parts > 16


@pytest.mark.parametrize(
    "text",
    [
        "dense forward f16 n5 i40 o21 b1",
        "dense forward bf16 n70 i24 o16 b1 t1",
        "dense backward_data f16 n9 i40 o24",
        "dense backward_data f16 n3 i20 o12 t1",
        "dense backward_weight bf16 n100 i19 o30",
        "dense backward_weight f16 n40 i64 o24 t1",
    ],
)
def test_dense_layers(text: str, forced: list) -> None:
    forced[:] = [SMALLEST["mma"], 1]
    wanted = Check(core.parse(text))
    plan = Context.on(None).plan(wanted.problem, "channels_last_gpu")
    wanted.expect_right(plan, wanted.run(plan))
