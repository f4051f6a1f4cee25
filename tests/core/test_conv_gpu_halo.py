"""Convolutions on Hopper's units from pixels that lie in local memory once, computed through local memory here.

Data are small whole numbers, whose products and sums are exact in TF32 and float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from clgraft import core
from clgraft.core.operators.conv.gemm_gpu import gemm as gpu_gemm
from clgraft.core.operators.conv.gemm_gpu.halo import Halo, halo_of, round_columns
from clgraft.core.operators.conv.gemm_gpu.tiles import (
    LAUNCH_CYCLES,
    GroupTile,
    ProductShape,
    TileChoice,
    choose,
    rows,
    serves,
)
from clgraft.core.operators.conv.grid import backward_data_grids, forward_grid
from clgraft.core.operators.conv.winograd_gpu.costs import direct_cost
from clgraft.core.session.context import Context
from tests.core.conv_checks import (
    OUTPUTS,
    an_h200,
    expect_exact_in_tf32,
    expect_what_follows,
    forced_choice,
    reference,
    whole_numbers,
)
from tests.core.test_epilogues import BOTH

WGMMA = next(tile for tile in rows("nvidia:tf32", 4) if tile.micro == "wgmma" and tile.tf32)
# problem: rows and pixels of a tile, warpgroups that share its pixels, parts of the depth
PROBLEMS = {
    "conv forward n2 ic64 ih8 iw9 oc70 kh3 kw3 ph1 pw1 b1": (64, 64, 1, 1),
    "conv forward g2 n2 ic128 ih10 iw6 oc60 kh3 kw3 ph2 pw2": (64, 64, 2, 2),
    "conv backward_data n5 ic130 ih7 iw7 oc32 kh3 kw3 ph1 pw1": (128, 128, 1, 1),
    "conv backward_data n2 ic20 ih6 iw8 oc64 kh3 kw2 pw1 dh2": (64, 96, 1, 1),
    "conv forward f16 n2 ic96 iw36 oc20 kw7 pw3": (64, 64, 1, 2),
    # one tap: pixels have powers of their own, as rows of weights do
    "conv forward n3 ic200 ih7 iw7 oc70 kh1 kw1 b1": (64, 64, 1, 1),
    "conv backward_data n2 ic136 ih5 iw9 oc300 kh1 kw1": (128, 96, 1, 2),
    "conv forward g2 n2 ic80 ih17 iw3 oc90 kh1 kw1": (64, 128, 2, 1),
    "conv forward n1 ic450 iw130 oc64 kw1": (128, 64, 1, 1),
    "conv forward n2 ic64 id3 ih5 iw7 oc20 kd1 kh1 kw1": (64, 64, 1, 1),
    "conv forward n1 ic70 ih3 iw3 oc9 kh1 kw1": (64, 64, 1, 1),
}
MORE = {
    "conv forward n2 ic992 ih6 iw6 oc130 kh1 kw1": (256, 128, 1, 1),
    "conv backward_data n1 ic20 ih3 iw5 oc2048 kh1 kw1": (64, 256, 1, 3),
    "conv forward n2 ic64 ih10 iw10 oc20 kh5 kw5": (64, 64, 1, 2),
    "conv forward n40 ic32 ih2 iw2 oc70 kh3 kw3 ph1 pw1 b1": (64, 128, 2, 1),
    "conv forward n1 ic32 ih9 iw11 oc12 kh5 kw3 ph4 pw2": (64, 224, 1, 1),
    "conv backward_data n1 ic12 ih20 iw21 oc64 kh1 kw7": (256, 128, 1, 2),
    "conv backward_data n2 ic20 ih9 iw12 oc96 kh3 kw3 ph1 pw1": (64, 192, 2, 1),
    "conv forward n2 ic32 ih6 iw120 oc9 kh3 kw3 ph1 pw1": (128, 256, 2, 1),
    "conv forward n2 ic128 ih8 iw9 oc70 kh3 kw3 ph1 pw1": (64, 128, 1, 1),
}


def tile_of(m: int, n: int, shared: int = 1, one_tap: bool = False) -> GroupTile:
    return replace(WGMMA, m=m, n=n, k=64, item_m=2, item_n=n // 4 // shared, halo=True, taps=False, one_tap=one_tap)


@pytest.fixture
def forced(monkeypatch: pytest.MonkeyPatch) -> Iterator[list]:
    """A tile in three numbers and a number of parts, which are then chosen for every product."""
    wanted: list = []

    def choose(product: ProductShape, device: object, size: int, split: bool = True, only: object = None) -> TileChoice:
        *numbers, parts = wanted
        assert product.halo is not None
        tile = tile_of(*numbers, one_tap=product.halo.one_tap)
        assert serves(tile, product)
        return forced_choice(product, tile, parts)

    monkeypatch.setattr(gpu_gemm, "choose", choose)
    yield wanted


@pytest.mark.parametrize("text", PROBLEMS)
def test_results_are_exact(text: str, forced: list) -> None:
    forced[:] = PROBLEMS[text]
    expect_exact_in_tf32(core.parse(text))


@pytest.mark.exhaustive
@pytest.mark.parametrize("text", MORE)
def test_more_results_are_exact(text: str, forced: list) -> None:
    forced[:] = MORE[text]
    expect_exact_in_tf32(core.parse(text))


def test_what_follows_is_computed(forced: list) -> None:
    forced[:] = 64, 64, 1, 1
    expect_what_follows(core.parse(f"fused {next(iter(PROBLEMS))} {BOTH}"))


def test_nan_reaches_only_the_pixels_that_meet_it(forced: list) -> None:
    """The zeros after a row are those in front of the next one."""
    text = next(iter(PROBLEMS))
    forced[:] = PROBLEMS[text]
    problem = core.parse(text)
    arrays = whole_numbers(problem, 9)
    arrays["x"][0, 5, 3, 8] = arrays["x"][1, 40, 0, 0] = np.nan
    exact = reference(problem, arrays)
    result = np.zeros(exact.shape, np.float32)
    Context.on(None).plan(problem, algorithm="gpu_gemm").run(**arrays, y=result)
    np.testing.assert_array_equal(result, exact)


def rounded_result(text: str, arrays: dict[str, np.ndarray]) -> np.ndarray:
    problem = core.parse(text)
    output = OUTPUTS[problem.direction]
    (shape,) = (argument.shape for argument in problem.arguments() if argument.name == output)
    result = np.full(shape, np.nan, problem.dtype)
    Context.on(None).plan(problem, algorithm="gpu_gemm").run(**arrays, **{output: result})
    return result


def rounding_bound(text: str, arrays: dict[str, np.ndarray]) -> np.ndarray:
    """The documented bound of an error: of 11 bits of each operand, and of the exponents that are missing."""
    problem = core.parse(text)
    magnitudes = {name: np.abs(array).astype(np.float64) for name, array in arrays.items()}
    x, w = magnitudes["x"], magnitudes["w"]
    least_x = 2.0**-29 * x.max(axis=tuple(range(1, x.ndim)), keepdims=True) * np.ones_like(x)
    least_w = 2.0**-38 * w.max(axis=tuple(range(1, w.ndim)), keepdims=True) * np.ones_like(w)
    relative = (2.0**-10 + problem.terms * 2.0**-23) * reference(problem, magnitudes)
    least = [reference(problem, {**magnitudes, **changed}) for changed in ({"x": least_x}, {"w": least_w})]
    return relative + sum(least)


RANGES = "conv forward n6 ic40 ih9 iw8 oc12 kh3 kw3 ph1 pw1"


def test_images_and_rows_of_any_magnitude(forced: list) -> None:
    """Each as accurate as the others: from 1e-25 to 1e28, an image of zeros, and weights between 1e-7 and 1e7."""
    forced[:] = 64, 64, 1, 1
    rng, problem = np.random.default_rng(11), core.parse(RANGES)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((6, 40, 9, 8), (12, 40, 3, 3)))
    x *= np.float32([1e-25, 1e28, 1, 0, 1e-6, 3e4]).reshape(6, 1, 1, 1)
    w *= (10.0 ** np.linspace(-7, 7, 12)).astype(np.float32).reshape(12, 1, 1, 1)
    w[5] = 0
    arrays = {"x": x, "w": w}
    exact = reference(problem, arrays)
    error = np.abs(rounded_result(RANGES, arrays) - exact)
    assert (error <= (2.0**-10 + problem.terms * 2.0**-23) * reference(problem, {"x": np.abs(x), "w": np.abs(w)})).all()
    assert (error[[0, 1, 2, 4, 5]].max(axis=(1, 2, 3)) > 0).all()


def test_factors_of_extreme_magnitudes_meet(forced: list) -> None:
    """Their product is no number or zero, but not that of the operands."""
    forced[:] = 64, 64, 1, 1
    x, w = np.zeros((6, 40, 9, 8), np.float32), np.zeros((12, 40, 3, 3), np.float32)
    x[0], x[1], x[2], w[:4], w[4:8], w[8:] = 2.0**-100, 2.0**110, 2.0**15, 2.0**100, 2.0**-120, 2.0**-2
    exact = reference(core.parse(RANGES), {"x": x, "w": w})
    np.testing.assert_allclose(rounded_result(RANGES, {"x": x, "w": w})[:3], exact[:3].astype(np.float32), rtol=1e-6)


@pytest.mark.parametrize("value", [1e30, -3e38, 70000.0])
def test_a_large_number_leaves_other_images_alone(value: float, forced: list) -> None:
    """And its own image the accuracy that is documented."""
    forced[:] = 64, 64, 1, 1
    rng, problem = np.random.default_rng(12), core.parse(RANGES)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((6, 40, 9, 8), (12, 40, 3, 3)))
    usual = rounded_result(RANGES, {"x": x, "w": w})
    x[2, 33, 4, 5] = value
    arrays = {"x": x, "w": w}
    result = rounded_result(RANGES, arrays)
    others = [0, 1, 3, 4, 5]
    np.testing.assert_array_equal(result[others], usual[others])
    error, bound = np.abs(result - reference(problem, arrays)), rounding_bound(RANGES, arrays)
    assert (error <= bound)[np.isfinite(result)].all()
    assert np.isfinite(result[2, :, 6:]).all()


def test_samples_that_are_zero(forced: list) -> None:
    """All of them, whatever the magnitude of the others: the image is rounded once more."""
    forced[:] = 64, 64, 1, 1
    rng, problem = np.random.default_rng(13), core.parse(RANGES)
    x, w = np.zeros((6, 40, 9, 8), np.float32), rng.standard_normal((12, 40, 3, 3)).astype(np.float32)
    size = 40 * 9 * 8
    sampled = {min(run * size // 32 + i, size - 1) for run in range(32) for i in range(8)}
    others = np.array(sorted(set(range(size)) - sampled))
    for image, magnitude in enumerate((1e-30, 1e-20, 1, 1e5, 1e15, 1e35)):
        x[image].reshape(-1)[others] = rng.standard_normal(len(others)) * magnitude
    arrays = {"x": x, "w": w}
    error = np.abs(rounded_result(RANGES, arrays) - reference(problem, arrays))
    assert (error <= rounding_bound(RANGES, arrays)).all()
    assert (error <= 2e-3 * np.abs(reference(problem, arrays)).max(axis=(1, 2, 3), keepdims=True)).all()


POINTS = "conv forward n3 ic72 ih5 iw7 oc12 kh1 kw1"


def test_pixels_and_rows_of_any_magnitude(forced: list) -> None:
    """Each pixel of a kernel of one tap has a power of its own, whatever the others of its image are."""
    forced[:] = 64, 64, 1, 1
    rng, problem = np.random.default_rng(15), core.parse(POINTS)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((3, 72, 5, 7), (12, 72, 1, 1)))
    x *= (10.0 ** np.linspace(-25, 28, 3 * 5 * 7)).astype(np.float32).reshape(3, 1, 5, 7)
    w *= (10.0 ** np.linspace(-7, 7, 12)).astype(np.float32).reshape(12, 1, 1, 1)
    x[1, :, 2, 2] = w[5] = 0
    arrays = {"x": x, "w": w}
    error = np.abs(rounded_result(POINTS, arrays) - reference(problem, arrays))
    assert (error <= (2.0**-10 + problem.terms * 2.0**-23) * reference(problem, {"x": np.abs(x), "w": np.abs(w)})).all()
    assert (error.max(axis=1) > 0).sum() == 3 * 5 * 7 - 1


def test_special_numbers_reach_only_their_pixel(forced: list) -> None:
    """NaN, infinity and 1e30, which takes bits from the other channels of its pixel; a weight that is NaN."""
    forced[:] = 64, 64, 1, 1
    rng = np.random.default_rng(16)
    x, w = (rng.integers(-9, 10, shape).astype(np.float32) for shape in ((3, 72, 5, 7), (12, 72, 1, 1)))
    w[w == 0] = 1
    x[0, 7, 3, 3], x[1, 71, 0, 0], x[2, 0, 4, 6], x[0, 12, 0, 5] = np.inf, -np.inf, np.nan, 1e30
    w[3, 20] = np.nan
    arrays = {"x": x, "w": w}
    with np.errstate(invalid="ignore"):
        exact = reference(core.parse(POINTS), arrays).astype(np.float32)
    result = rounded_result(POINTS, arrays)
    rows = [row for row in range(12) if row != 3]
    np.testing.assert_allclose(result[0, rows, 0, 5], exact[0, rows, 0, 5], rtol=1e-3)
    result[0, :, 0, 5] = exact[0, :, 0, 5]
    np.testing.assert_array_equal(result, exact)
    assert np.isnan(result[:, 3]).all()


def test_infinity_and_nan_are_met_as_in_tf32(forced: list) -> None:
    forced[:] = 64, 64, 1, 1
    rng, problem = np.random.default_rng(14), core.parse(RANGES)
    x, w = (rng.integers(-9, 10, shape).astype(np.float32) for shape in ((6, 40, 9, 8), (12, 40, 3, 3)))
    w[w == 0] = 1
    x[0, 7, 3, 3], x[1, 39, 0, 0], x[2, 0, 8, 7], x[4, 12, 5, 5] = np.inf, -np.inf, np.nan, 1e30
    w[3, 20, 1, 1] = np.nan
    with np.errstate(invalid="ignore"):
        exact = reference(problem, {"x": x, "w": w})
    result = rounded_result(RANGES, {"x": x, "w": w})
    images = [0, 1, 2, 3, 5]
    np.testing.assert_array_equal(result[images], exact[images].astype(np.float32))
    assert np.isnan(result[4, 3]).all() and np.isfinite(result[4, 4:]).all()


def halo(text: str) -> Halo | None:
    problem = core.parse(text)
    grids = [forward_grid(problem)] if problem.direction == "forward" else backward_data_grids(problem)
    return halo_of(grids, problem.in_channels if problem.direction == "forward" else problem.out_channels)


def test_zeros_between_rows_and_images_are_shared() -> None:
    for text, sizes in (
        ("conv forward n2 ic32 ih14 iw12 oc8 kh3 kw3 ph1 pw1", (15, 13)),
        ("conv forward n2 ic32 ih14 iw12 oc8 kh3 kw3", (14, 12)),
        ("conv forward n2 ic32 ih14 iw12 oc8 kh3 kw3 ph2 pw2", (16, 14)),
        ("conv backward_data n2 ic8 ih14 iw12 oc32 kh5 kw5 ph2 pw2", (16, 14)),
    ):
        found = halo(text)
        assert found is not None and found.sizes == sizes
    found = halo("conv forward n2 ic32 ih14 iw12 oc8 kh3 kw3 ph1 pw1")
    assert found is not None and found.rows(64) == 96  # and 2 * 13 + 2 more pixels, up to a multiple of 8


@pytest.mark.parametrize(
    "text",
    [
        "conv forward n2 ic31 ih14 iw12 oc8 kh3 kw3",
        "conv forward n2 ic32 ih14 iw12 oc8 kh3 kw3 sh2 sw2",
        "conv backward_data n2 ic8 ih14 iw12 oc32 kh3 kw3 sh2 sw2",
        "conv forward n2 ic32 ih14 iw14 oc8 kh2 kw2",
        "conv forward n2 ic32 id3 ih4 iw5 oc8 kd2 kh2 kw2",
        "conv backward_data n2 ic8 ih4 iw4 oc32 kh3 kw3 ph3 pw3",
        "conv forward n2 ic32 ih14 iw14 oc8 kh1 kw1 sh2 sw2",
        "conv forward n2 ic32 ih14 iw14 oc8 kh1 kw1 ph1",
        "conv forward n2 ic2049 ih4 iw4 oc8 kh1 kw1",
    ],
)
def test_other_problems_are_left_to_other_kernels(text: str) -> None:
    assert halo(text) is None


def test_tiles_that_do_not_fit_serve_not() -> None:
    def product(width: int, channels: int) -> ProductShape:
        found = halo(f"conv forward n1 ic{channels} ih64 iw{width} oc64 kh3 kw3 ph1 pw1")
        return ProductShape(64, 64 * width, 9 * channels, 1, channels, found)

    assert serves(tile_of(128, 256), product(64, 64))
    assert not serves(tile_of(128, 256), product(64, 1024))  # too many products for the units' sums
    assert not serves(tile_of(128, 256), product(800, 64))  # too much local memory
    assert serves(tile_of(64, 256), product(100, 64))
    assert serves(tile_of(64, 192, 2), product(80, 64))
    assert not serves(replace(tile_of(64, 192, 2), busy_whole=4), product(80, 64))  # no room for so many work-groups
    assert serves(replace(tile_of(64, 192, 2), busy_whole=3), product(40, 64))
    assert not serves(replace(tile_of(64, 192, 2), busy_whole=3), product(40, 128))  # two chunks at the same time
    assert not serves(tile_of(64, 192, 2), product(100, 64))  # too many rows for its pixels
    assert not serves(tile_of(128, 256), replace(product(64, 64), halo=None))
    assert not serves(tile_of(128, 256), replace(product(64, 64), groups=2**11))  # too much workspace


def test_stages_leave_room_for_two_work_groups() -> None:
    found = halo("conv forward n1 ic32 ih14 iw14 oc8 kh3 kw3 ph1 pw1")
    wide = halo("conv forward n1 ic32 ih56 iw56 oc8 kh3 kw3 ph1 pw1")
    assert found is not None and wide is not None
    assert (found.stages(64, 192), found.groups(64, 192)) == (4, 2)
    assert (wide.stages(64, 192), wide.groups(64, 192)) == (3, 2)
    assert (wide.stages(64, 256), wide.groups(64, 256)) == (4, 1)


def test_kernels_of_several_taps_are_left_to_halo_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward and backward data on an H200; Winograd's convolution is compared with them."""
    monkeypatch.setenv("CLGRAFT_PRECISION", "tf32")
    device = replace(an_h200(), has_wgmma_from_tiles=True)
    for channels, size, tile in ((64, 56, "64x192"), (128, 28, "128x224"), (256, 14, "128x224"), (512, 7, "64x128")):
        for direction in ("forward", "backward_data"):
            text = f"conv {direction} n64 ic{channels} ih{size} iw{size} oc{channels} kh3 kw3 ph1 pw1"
            product = ProductShape(channels, 64 * size**2, 9 * channels, 1, channels, halo(text))
            choice = choose(product, device, 4)
            assert choice.tile.name == f"{tile}x64-wgmma-tf32-halo"
            cycles = direct_cost(core.parse(text), device)
            assert cycles == choice.cycles + 2 * LAUNCH_CYCLES


def test_deep_kernels_of_one_tap_are_rounded_where_that_was_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """As measured on an H200: channels to outputs, pixels of a side, and the tile."""
    monkeypatch.setenv("CLGRAFT_PRECISION", "tf32")
    device = replace(an_h200(), has_wgmma_from_tiles=True)
    for channels, outputs, size, tile in (
        (2048, 512, 7, "64x128x64-wgmma-tf32-halo-one-tap"),
        (512, 2048, 7, "128x224x64-wgmma-tf32-halo-one-tap"),
        (256, 1024, 14, "128x128x64-wgmma-tf32-halo-one-tap"),
        (768, 192, 17, "64x128x64-wgmma-tf32-halo-one-tap"),
        (1024, 256, 14, "256x128x32-wgmma-tf32"),
        (512, 128, 28, "128x128x32-wgmma-tf32"),
        (64, 256, 56, "128x64x32-wgmma-tf32-stream"),
    ):
        found = halo(f"conv forward n64 ic{channels} ih{size} iw{size} oc{outputs} kh1 kw1")
        product = ProductShape(outputs, 64 * size**2, channels, 1, channels, found, one_tap=True)
        assert choose(product, device, 4).tile.name == tile


def test_few_columns_are_rounded_by_many_work_groups() -> None:
    assert round_columns(256, 10**5, 132) == (64, 4)
    assert round_columns(2048, 10**5, 132) == (8, 4)
    assert round_columns(256, 2592, 132) == (8, 1)
    assert round_columns(64, 5000, 132) == (16, 1)
