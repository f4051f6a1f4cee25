"""Convolution by Fourier transforms for GPUs: every direction against float64, every tile, in chunks and in parts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from clgraft import core
from clgraft.core.errors import Declined
from clgraft.core.operators.conv.fft import costs
from clgraft.core.operators.conv.fft import gpu as gpu_fft
from clgraft.core.operators.conv.gemm_gpu import tiles as gpu_gemm_tiles
from clgraft.core.operators.conv.gemm_gpu import transformed
from clgraft.core.operators.conv.gemm_gpu.product import TileChoice
from clgraft.core.operators.conv.gemm_gpu.tile import ProductShape
from clgraft.core.runtime.toolchains.nvidia import units_of
from clgraft.core.session.context import Context
from tests.core.conv_checks import (
    DIRECTIONS,
    FIVES,
    OUTPUTS,
    check,
    expect_nan_in_its_tiles,
    expect_near,
    forced_choice,
    random_arrays,
    reference,
)
from tests.core.test_epilogues import BOTH, CHANNELS
from tests.core.test_epilogues import check as check_epilogue

WORTHWHILE, LEAST_TAPS = costs.worthwhile, costs.LEAST_TAPS
SPREAD = 1.0  # transforms mix the elements of a tile
LINES = {
    **FIVES,
    "3x3": "conv n2 ic5 ih9 iw11 oc7 kh3 kw3 ph1 pw1 b1",
    "7x7-one-channel": "conv n1 ic1 ih13 iw17 oc1 kh7 kw7 ph3 pw3",
    "7x7-whole-plane": "conv n3 ic2 ih7 iw7 oc5 kh7 kw7",
    "11x11": "conv n2 ic13 ih29 iw27 oc11 kh11 kw11 ph5 pw5",
    "15x15": "conv n1 ic3 ih40 iw19 oc2 kh15 kw15 ph7 pw7",
    "3x9": "conv n2 ic3 ih8 iw33 oc5 kh3 kw9 ph0 pw4",
    "1x7": "conv n2 ic3 ih8 iw14 oc5 kh1 kw7 pw3",
    "edges-meet-in-padding": "conv n5 ic7 ih14 iw30 oc3 kh5 kw5 ph2 pw2",
    "one-row-too-many": "conv n2 ic3 ih15 iw31 oc3 kh5 kw5 ph2 pw2",
    "larger-than-a-tile": "conv n2 ic3 ih71 iw45 oc5 kh5 kw5 ph2 pw2 b1",
}


@pytest.fixture(scope="module", autouse=True)
def whether_or_not_worthwhile() -> Iterator[None]:
    """Serve problems of any size."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(costs, "worthwhile", lambda shape, device: True)
        patch.setattr(costs, "LEAST_TAPS", 1)
        patch.setenv("CLGRAFT_TUNE", "off")
        yield


def gpu_context() -> Context:
    """Return a context that plans for a GPU of many compute units, and runs on this device."""
    context = Context.on(None)
    context.device = replace(context.device, compute_units=128, device_class="gpu")
    return context


@pytest.fixture(scope="module", params=[(16, "rows"), (32, "columns")], ids=["16", "32"])
def context(request: pytest.FixtureRequest) -> Iterator[Context]:
    """A context of tiles of one size, and twins on one side, for all that is planned."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(costs, "SIDES", request.param[:1])
        patch.setattr(costs, "TWINS", request.param[1:])
        yield gpu_context()


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", LINES)
def test_matches_float64(context: Context, name: str, direction: str) -> None:
    problem = core.parse(LINES[name]).with_direction(direction)
    if name == "15x15" and costs.SIDES == (16,):
        with pytest.raises(Declined, match="too large for tiles"):
            gpu_fft.plan(problem, context.planner)
        return
    check(context, problem, "gpu_fft", spread=SPREAD)
    check(context, problem, "gpu_fft", spread=SPREAD, accumulate=True, seed=3)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_chunks_of_tiles(context: Context, direction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformed, "MOST_BYTES", 2**17)
    problem = core.parse(LINES["larger-than-a-tile"]).with_direction(direction)
    launches = gpu_fft.plan(problem, context.planner).launches
    assert [launch.kernel.function_name for launch in launches].count("conv_gemm") > 1
    fresh = gpu_context()  # plans are cached
    check(fresh, problem, "gpu_fft", spread=SPREAD)
    check(fresh, problem, "gpu_fft", spread=SPREAD, accumulate=True)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_error_is_that_of_few_sums(context: Context, direction: str) -> None:
    """Relative to float64 in the norm; Winograd's methods reach 2.4e-6, direct sums of as many terms 4e-7."""
    problem = core.parse("conv n4 ic64 ih27 iw27 oc48 kh5 kw5 ph2 pw2").with_direction(direction)
    arrays = random_arrays(problem)
    exact = reference(problem, arrays)
    plan = context.plan(problem, algorithm="gpu_fft")
    result = np.full(exact.shape, np.nan, np.float32)
    given = {argument.name: arrays[argument.name] for argument in plan.arguments if argument.role == "in"}
    plan.run(**given, **{OUTPUTS[direction]: result})
    assert np.linalg.norm(result - exact) < 3e-7 * np.linalg.norm(exact)


TILES = {
    f"{tile.device_class}-{tile.name}": tile
    for device_class in ("nvidia", "mali")
    for tile in gpu_gemm_tiles.rows(device_class, 4)
    if tile.name in ("64x128x32-wgmma", "64x64x16-mma", "32x32x8")
}


@pytest.mark.parametrize("twin", ["rows", "columns"])
@pytest.mark.parametrize("name", TILES)
def test_products_on_every_micro_kernel(name: str, twin: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles that hold twins and others, with parts of a depth whose halves are padded, and chunks."""
    tile = TILES[name]

    def insist(product: ProductShape, device: object, size: int, name: str, parts: int) -> TileChoice:
        return forced_choice(product, tile, parts)

    monkeypatch.setattr(transformed, "insist", insist)
    problem = core.parse("conv forward n12 ic17 ih17 iw13 oc37 kh5 kw5 ph2 pw2 b1")
    for direction, parts in (("forward", 1), ("backward_filter", 2)):
        settings = {"tile": 16, "twin": twin, "product": tile.name, "parts": parts, "chunks": 2}
        run_with(gpu_context(), problem.with_direction(direction), settings)


@pytest.mark.parametrize("twin", ["rows", "columns"])
def test_memory_holds_complex_numbers_once(twin: str) -> None:
    """What gives the imaginary part of a product, and negative numbers, is not in memory."""
    context = gpu_context()
    problem = core.parse("conv forward n32 ic32 ih14 iw14 oc64 kh5 kw5 ph2 pw2")
    settings = {"tile": 16, "twin": twin, "product": "32x32x16", "parts": 1, "chunks": 1}
    launches = gpu_fft.plan(problem, context.planner, settings)
    points, numbers = 16 * 8 + 2, 64 * 32 + 32 * 32 + 64 * 32
    assert launches.workspace_bytes == 8 * points * numbers


@pytest.mark.parametrize("taps", [(1, 9), (9, 1), (8, 8), (16, 16)])
def test_kernels_of_few_and_of_many_taps(context: Context, taps: tuple[int, int]) -> None:
    """Up to 8 taps along both axes are transformed in another way than more."""
    h, w = taps
    for direction in DIRECTIONS:
        problem = core.parse(f"conv {direction} n2 ic3 ih16 iw14 oc5 kh{h} kw{w} ph{h // 2} pw{w // 2}")
        if max(taps) == 16 == costs.SIDES[0]:
            with pytest.raises(Declined):
                gpu_fft.plan(problem, context.planner)
        else:
            check(context, problem, "gpu_fft", spread=SPREAD)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_settings_of_a_search(direction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "SIDES", (32, 16))
    monkeypatch.setattr(costs, "TWINS", ("rows", "columns"))
    context = gpu_context()
    problem = core.parse("conv n2 ic19 ih9 iw33 oc40 kh5 kw5 ph2 pw2").with_direction(direction)
    listed = list(gpu_fft.candidates(problem, context.planner))
    assert listed[0] == {}
    product = next(gpu_gemm_tiles.candidates(context.device, 4)).name
    some = [settings for settings in listed[1:] if settings["product"] == product]
    filters = direction == "backward_filter"
    assert len(some) == 4 * len(gpu_fft.CHUNKS) * (len(gpu_fft.PARTS) if filters else 1)
    for settings in some[:: 5 if filters else 1]:
        run_with(context, problem, dict(settings))


def run_with(context: Context, problem: core.ConvProblem, settings: dict[str, int | str]) -> None:
    """Run a problem with settings and compare it with float64."""
    expect_near(context, problem, gpu_fft.plan(problem, context.planner, settings), "gpu_fft", 1e-6)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_two_runs_give_the_same_bits(context: Context, direction: str) -> None:
    problem = core.parse(LINES["larger-than-a-tile"]).with_direction(direction)
    first, second = (check(context, problem, "gpu_fft", spread=SPREAD) for _ in range(2))
    assert first.tobytes() == second.tobytes()


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_nan_stays_in_its_tiles(context: Context, direction: str) -> None:
    problem = core.parse("conv n3 ic5 ih70 iw12 oc7 kh5 kw5 ph2 pw2").with_direction(direction)
    expect_nan_in_its_tiles(context, problem, "gpu_fft", slice(2, 7), 36)


@pytest.mark.parametrize(
    "text",
    [
        "conv f64 n2 ic5 ih9 iw11 oc7 kh5 kw5 ph2 pw2",
        "conv n2 ic4 ih11 iw10 oc5 kh3 kw3 ph2 pw2 dh2 dw2",
        "conv n2 ic4 ih11 iw13 oc6 kh5 kw5 sh2 sw2 ph2 pw2",
        "conv n0 ic3 ih5 iw5 oc4 kh5 kw5 ph2 pw2",
        "conv g2 n2 ic4 ih11 iw13 oc6 kh5 kw5 ph2 pw2",
        "conv n2 ic4 iw13 oc6 kw5 pw2",
        "conv n2 ic3 ih39 iw38 oc5 kh33 kw33 ph3 pw3",
        "conv n70000 ic1 ih200 iw200 oc1 kh5 kw5",
    ],
)
def test_declines_what_it_does_not_serve(text: str) -> None:
    for direction in DIRECTIONS:
        with pytest.raises(Declined):
            gpu_fft.plan(core.parse(text).with_direction(direction), core.context().planner)


@pytest.mark.parametrize(
    "changes",
    [
        *({"tile": 8}, {"twin": "both"}, {"product": "7x7x7"}, {"parts": 2}, {"parts": 0}, {"chunks": 0}),
        *({"chunks": 10**6}, {"rows": 1}),
    ],
)
def test_settings_that_cannot_be_are_declined(changes: dict[str, int | str]) -> None:
    context = core.context()
    problem = core.parse("conv forward n2 ic19 ih9 iw13 oc70 kh5 kw5")
    product = next(gpu_gemm_tiles.candidates(context.device, 4)).name
    settings = {"tile": 16, "twin": "rows", "product": product, "parts": 1, "chunks": 1}
    gpu_fft.plan(problem, context.planner, settings)
    with pytest.raises(Declined):
        gpu_fft.plan(problem, context.planner, {**settings, **changes})


def test_devices_with_little_local_memory_transform_fewer_planes() -> None:
    context = gpu_context()
    for nbytes, planes in ((9 * 1024, (2, 4)), (48 * 1024, (8, 8)), (20 * 1024, (4, 8))):
        context.device = replace(context.device, local_memory=nbytes)
        assert (gpu_fft._planes(32, context.planner), gpu_fft._planes(16, context.planner)) == planes
    problem = core.parse(LINES["edges-meet-in-padding"])
    for direction in DIRECTIONS:
        for side in (16, 32):
            settings = {"tile": side, "twin": "rows", "product": "32x32x16", "parts": 1, "chunks": 1}
            run_with(context, problem.with_direction(direction), settings)
    context.device = replace(context.device, local_memory=4 * 1024)
    with pytest.raises(Declined, match="local memory"):
        gpu_fft._planes(32, context.planner)


@pytest.mark.parametrize(("storage", "epilogue"), [("", BOTH), ("f16 ", CHANNELS)], ids=["f32", "f16"])
def test_epilogues(rng: np.random.Generator, storage: str, epilogue: str) -> None:
    context = gpu_context()
    for size in ("ih15 iw33", "ih14 iw14"):
        problem = core.parse(f"fused conv forward {storage}n2 ic19 {size} oc37 kh5 kw5 ph2 pw2 b1 {epilogue}")
        launches = gpu_fft.plan(problem.base, context.planner, epilogue=problem.epilogue)
        check_epilogue(context.plan_launches(problem, launches, "gpu_fft"), problem, rng)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_large_kernels_with_channels_choose_it(direction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Estimates for an H200."""
    monkeypatch.setattr(costs, "SIDES", (32, 16))
    monkeypatch.setattr(costs, "TWINS", ("rows", "columns"))
    device = replace(
        core.context().device,
        **{"device_class": "nvidia", "compute_units": 132, "max_work_group_size": 1024, **units_of(90)},
        local_memory=48 * 1024,
        global_memory=140 * 2**30,
        has_wgmma=True,
    )
    for text, chosen in (
        ("conv n64 ic64 ih27 iw27 oc192 kh5 kw5 ph2 pw2", True),
        ("conv n64 ic64 ih27 iw27 oc64 kh11 kw11 ph5 pw5", True),
        ("conv n1 ic3 ih8 iw8 oc2 kh5 kw5 ph2 pw2", False),
        ("conv n8 ic64 ih27 iw27 oc192 kh5 kw5 ph2 pw2", direction == "backward_data"),
    ):
        problem = core.parse(text).with_direction(direction)
        best = min(costs.shapes(problem), key=lambda shape: costs.cost(shape, device))
        assert WORTHWHILE(best, device) == chosen, text


def test_small_kernels_are_left_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "LEAST_TAPS", LEAST_TAPS)
    with pytest.raises(Declined, match="fewer than 25 taps"):
        gpu_fft.plan(core.parse("conv forward n64 ic64 ih27 iw27 oc192 kh3 kw3 ph1 pw1"), core.context().planner)
