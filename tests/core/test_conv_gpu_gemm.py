"""The convolution for GPUs: every direction against float64, with every tile that ships, split and whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from clgraft import core
from clgraft.core.errors import Declined
from clgraft.core.operators.conv.gemm_gpu import builder, wgmma
from clgraft.core.operators.conv.gemm_gpu import product as gpu_gemm_product
from clgraft.core.operators.conv.gemm_gpu import tiles as gpu_gemm_tiles
from clgraft.core.operators.conv.gemm_gpu.gemm import PORTABLE as GPU_GEMM
from clgraft.core.operators.conv.gemm_gpu.product import TileChoice
from clgraft.core.operators.conv.gemm_gpu.stream import STREAM
from clgraft.core.operators.conv.gemm_gpu.tile import ProductShape
from clgraft.core.runtime.toolchains.nvidia import HOPPER_LOCAL_MEMORY
from clgraft.core.session.context import Context
from tests.core.conv_checks import (
    DIRECTIONS,
    OUTPUTS,
    check,
    expect_exact_at_odd_addresses,
    forced_choice,
    random_arrays,
)
from tests.problem_sets import problem_lines

LINES = problem_lines("conv")
CLASSES = ("nvidia", "amd", "intel-gpu", "mali", "gpu")
TILES = {
    " ".join(map(str, (tile.bytes * 8, *tile.form.words, *tile.defines().values()))): tile
    for device_class in CLASSES
    for size in (4, 8)
    for tile in gpu_gemm_tiles.rows(device_class, size)
    if tile.form is not STREAM
}


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", ("1x7-many-channels", "3x3-many-channels", "1x1-plane-rest", "deep", "many-channels"))
def test_lines_that_every_run_leaves_out(name: str, direction: str) -> None:
    problem = core.parse(LINES[name]).with_direction(direction)
    check(core.context(), problem, "gpu_gemm")
    check(core.context(), problem, "gpu_gemm", accumulate=True, seed=7)


@pytest.fixture
def forced(monkeypatch: pytest.MonkeyPatch) -> Iterator[list]:
    """A list of a tile and a number of parts, which are then chosen for every product."""
    wanted: list = []

    def choose(product: ProductShape, device: object, size: int, split: bool = True, only: object = None) -> TileChoice:
        tile, parts = wanted
        return forced_choice(product, tile, parts)

    monkeypatch.setattr(builder, "choose", choose)
    yield wanted


@pytest.mark.parametrize("name", TILES)
def test_every_tile(name: str, forced: list) -> None:
    """Whole and split, on both loaders; 19 channels are no whole steps, 70 rows are more than most tiles'."""
    tile = TILES[name]
    context = Context.on(None)
    dtype = "f64 " if tile.bytes == 8 else ""
    forced[:] = tile, 1
    check(context, core.parse(f"conv forward {dtype}n2 ic19 ih7 iw6 oc32 kh3 kw3 ph1 pw1 b1"), "gpu_gemm")
    forced[:] = tile, 3
    text = f"conv backward_filter {dtype}g2 n3 ic64 ih8 iw9 oc140 kh1 kw2 sh2 sw2 pw1"
    check(context, core.parse(text), "gpu_gemm", accumulate=True)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", [name for name, tile in TILES.items() if tile.bytes == 4])
def test_every_tile_with_vectors_of_pixels(name: str, forced: list) -> None:
    """The gradient of one tap's weights, whole and split."""
    forced[:] = TILES[name], 1
    check(Context.on(None), core.parse("conv backward_filter g2 n3 ic70 ih2 iw6 oc36 kh1 kw1"), "gpu_gemm")
    forced[:] = TILES[name], 2
    check(Context.on(None), core.parse("conv backward_filter n2 ic37 iw100 oc70 kw1"), "gpu_gemm", accumulate=True)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_vectors_of_pixels_in_16_bits(direction: str) -> None:
    """Kernels of one tap read and write four pixels at once, and one by one where their addresses require it."""
    for dtype in ("f16", "bf16"):
        problem = core.parse(f"conv {direction} {dtype} g2 n3 ic32 ih2 iw6 oc68 kh1 kw1")
        check(core.context(), problem, "gpu_gemm")
        check(core.context(), problem, "gpu_gemm", accumulate=True)
        expect_exact_at_odd_addresses(problem, accumulate=direction == "forward")


PHASES = (
    "conv n2 ic5 ih7 iw8 oc32 kh3 kw3 sh2 sw2 ph1 pw1",
    "conv g2 n3 ic70 ih5 iw6 oc64 kh1 kw1 sh2 sw2",
    "conv n1 ic3 ih13 iw11 oc16 kh5 kw3 sh3 sw2 ph2 pw0 qh0 qw2 dh2 dw3",
    "conv n1 ic4 ih9 iw17 oc16 kh3 kw4 sh6 sw4 ph4 pw1 dh4 dw2",
    "conv n2 ic3 ih3 iw2 oc16 kh2 kw1 sh5 sw3",
    "conv n1 ic3 id5 ih4 iw6 oc16 kd3 kh2 kw3 sd2 sh1 sw2 pd1 pw1",
    "conv n2 ic6 iw29 oc48 kw7 sw3 pw3",
    "conv f16 n2 ic6 ih7 iw9 oc16 kh3 kw3 sh2 sw2 ph1 pw1",
)


@pytest.mark.parametrize("text", PHASES)
def test_all_phases_of_a_stride_in_one_launch(text: str) -> None:
    problem = core.parse(text).with_direction("backward_data")
    names = [launch.kernel.function_name for launch in GPU_GEMM.plan(problem, core.context()).launches]
    assert names == ["conv_pack_weights", "conv_gemm"]
    check(core.context(), problem, "gpu_gemm")
    check(core.context(), problem, "gpu_gemm", accumulate=True, seed=3)


@pytest.mark.parametrize(("units", "depths"), [(1, [72]), (1000, [72, 128])])
def test_few_tiles_of_phases_suit_the_deepest(units: int, depths: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where each compute unit has one at most, that phase decides how long they take."""
    context = Context.on(None)
    context.device = replace(context.device, compute_units=units)
    asked = []

    def choose(product: ProductShape, *arguments: object) -> TileChoice:
        asked.append(product.depth)
        return gpu_gemm_product.choose(product, *arguments)

    monkeypatch.setattr(builder, "choose", choose)
    GPU_GEMM.plan(core.parse("conv backward_data n2 ic16 ih8 iw8 oc32 kh3 kw3 sh2 sw2 ph1 pw1"), context)
    assert asked == depths


def random_problem(seed: int) -> core.ConvProblem:
    rng = np.random.default_rng(seed)
    ndim = int(rng.integers(1, 4))
    groups = int(rng.choice([1, 1, 2, 3]))
    kernel, dilate = rng.integers(1, 5, ndim), rng.integers(1, 4, ndim)
    begin, end = rng.integers(0, 4, (2, ndim))
    size = np.maximum(dilate * (kernel - 1) + 1 - begin - end, 1) + rng.integers(0, (90, 14, 6)[ndim - 1], ndim)
    return core.ConvProblem(
        direction=str(rng.choice(DIRECTIONS)),
        batch=int(rng.integers(1, 5)),
        in_channels=groups * int(rng.choice([1, 3, 8, 16, 32, 37])),
        out_channels=groups * int(rng.choice([1, 5, 16, 32, 41, 80])),
        groups=groups,
        in_size=tuple(size),
        kernel=tuple(kernel),
        stride=tuple(rng.integers(1, 5, ndim)),
        dilate=tuple(dilate),
        pad_begin=tuple(begin),
        pad_end=tuple(end),
        bias=bool(rng.integers(2)),
        dtype=str(rng.choice(["float32", "float32", "float16", "float64"])),
    )


@pytest.fixture(scope="module")
def wide_device() -> Context:
    """A context that plans for a device of many compute units, which splits the depth, and runs on this one."""
    context = Context.on(None)
    context.device = replace(context.device, compute_units=128, device_class="gpu")
    return context


@pytest.mark.parametrize("seed", range(40))
def test_random_problems(seed: int, wide_device: Context) -> None:
    problem = random_problem(seed)
    if problem.dtype == "float64" and not wide_device.device.has_fp64:
        problem = replace(problem, dtype="float32")
    check(wide_device, problem, "gpu_gemm", accumulate=bool(seed % 2), seed=seed)


def test_a_wide_device_splits_the_depth(wide_device: Context) -> None:
    problem = core.parse(LINES["deep"])
    names = [launch.kernel.function_name for launch in GPU_GEMM.plan(problem, wide_device).launches]
    assert names == ["conv_pack_weights", "conv_gemm", "conv_sum"]


@pytest.mark.parametrize("kernel", ["kh1 kw1", "kh3 kw2 ph1"])
def test_phases_that_split_a_long_depth(kernel: str, wide_device: Context) -> None:
    """Phases without a tap have no product then, those with few taps one in a single part."""
    problem = core.parse(f"conv backward_data n2 ic6 ih9 iw7 oc1536 {kernel} sh2 sw2")
    names = [launch.kernel.function_name for launch in GPU_GEMM.plan(problem, wide_device).launches]
    assert names.count("conv_sum") == 4
    assert names.count("conv_gemm") == (1 if kernel == "kh1 kw1" else 4)
    check(wide_device, problem, "gpu_gemm")
    check(wide_device, problem, "gpu_gemm", accumulate=True)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_two_runs_give_the_same_bits(direction: str, wide_device: Context) -> None:
    problem = core.parse(LINES["small-planes"]).with_direction(direction)
    first, second = (check(wide_device, problem, "gpu_gemm") for _ in range(2))
    assert first.tobytes() == second.tobytes()


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_nan_stays_where_it_belongs(direction: str) -> None:
    """Zeros that fill tiles up must not meet the data: 0 * NaN is NaN."""
    problem = core.parse(LINES["plain-3x3"]).with_direction(direction)
    arrays = random_arrays(problem)
    arrays["x" if direction == "forward" else "dy"][0, 0, 4, 4] = np.nan
    plan = core.context().plan(problem, algorithm="gpu_gemm")
    given = {argument.name: arrays[argument.name] for argument in plan.arguments if argument.role == "in"}
    result = np.zeros(plan.arguments[-1].shape, np.float32)
    plan.run(**given, **{OUTPUTS[direction]: result})
    wrong = np.isnan(result)
    if direction == "backward_filter":
        assert wrong[0].all()
        assert not wrong[1:].any()
    else:
        assert wrong[0, :, 3:6, 3:6].all()
        assert wrong.sum() == wrong[0, :, 3:6, 3:6].size


def test_tiles_fit_their_kernels() -> None:
    for tile in TILES.values():
        assert tile.m % (tile.item_m * tile.patch_m) == 0 == tile.n % (tile.item_n * tile.patch_n), tile
        hopper = tile.form is wgmma.WGMMA
        assert tile.threads <= (384 if hopper else 256), tile
        assert tile.local_bytes <= (HOPPER_LOCAL_MEMORY if hopper else 48 * 1024), tile


def test_choice_respects_the_device() -> None:
    device = replace(core.context().device, device_class="nvidia", has_wgmma=False)
    device = replace(device, local_memory=20 * 1024, max_work_group_size=128)
    chosen = gpu_gemm_product.choose(ProductShape(512, 10000, 512, 1), device, 4)
    assert chosen.tile.threads <= 128
    assert chosen.tile.local_bytes <= 20 * 1024
    with pytest.raises(Declined, match="no tile"):
        gpu_gemm_product.choose(ProductShape(512, 10000, 512, 1), replace(device, local_memory=1024), 4)


@pytest.mark.parametrize(
    "text",
    [
        "conv n1 ic64 iw100000000 oc1 kw1",
        "conv n1000000 ic1 ih100 iw100 oc1 kh1 kw1",
        "conv n1 ic1 iw2000000000 oc1 kw1",
        "conv n1 ic65536 iw1 oc1 kw65536 pw65535",
    ],
)
def test_declines_what_32_bits_cannot_count(text: str) -> None:
    with pytest.raises(Declined):
        GPU_GEMM.plan(core.parse(text), core.context())
