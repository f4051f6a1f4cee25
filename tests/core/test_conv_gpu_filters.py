"""Gradients of filters of one tap on Hopper's units: tiles are rounded in local memory, and computed through it here.

Data are small whole numbers, whose products and sums are exact in TF32 and float32.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from clgraft import core
from clgraft.core.errors import Declined
from clgraft.core.operators.conv.gemm_gpu import filters
from clgraft.core.operators.conv.gemm_gpu.tiles import (
    SUMMED_DEPTH,
    GroupTile,
    ProductShape,
    choose,
    insist,
    rows,
    serves,
)
from clgraft.core.runtime.toolchains.nvidia import HOPPER_LOCAL_MEMORY
from clgraft.core.session.context import Context
from tests.core.conv_checks import (
    an_h200,
    expect_exact_at_odd_addresses,
    expect_exact_in_tf32,
    expect_operands_rounded_to_nearest,
    force_choices,
    products_of,
    reference,
    whole_numbers,
)

WGMMA = next(tile for tile in rows("nvidia:tf32", 4) if tile.micro == "wgmma" and tile.tf32)
# problem: rows of the tile's operands, and parts
PROBLEMS = {
    "conv backward_filter n3 ic70 ih4 iw5 oc64 kh1 kw1": (64, 64, 2),
    "conv backward_filter n5 ic40 ih14 iw2 oc130 kh1 kw1": (128, 64, 3),
    "conv backward_filter g2 n4 ic140 ih2 iw38 oc66 kh1 kw1": (64, 64, 5),
    "conv backward_filter n9 ic300 iw12 oc40 kw1": (256, 64, 2),
    "conv backward_filter n67 ic3 ih1 iw4 oc5 kh1 kw1": (64, 128, 2),
}
MORE = {
    "conv backward_filter n2 ic96 id3 ih4 iw8 oc140 kd1 kh1 kw1": (128, 128, 3),
    "conv backward_filter n1 ic129 ih32 iw29 oc260 kh1 kw1": (256, 128, 7),
    "conv backward_filter g3 n6 ic33 ih5 iw4 oc9 kh1 kw1": (64, 64, 2),
    "conv backward_filter n1 ic1 iw36 oc1 kw1": (64, 64, 2),
}


def tile_of(m: int, n: int) -> GroupTile:
    return replace(WGMMA, m=m, n=n, item_m=m // 4, item_n=2, filters=True, taps=False)


@pytest.fixture
def forced(monkeypatch: pytest.MonkeyPatch) -> list:
    """A tile and a number of parts, which are then chosen for every product."""
    return force_choices(monkeypatch)


def force(forced: list, sizes: tuple[int, int, int]) -> None:
    forced[:] = [tile_of(*sizes[:2]), sizes[2]]


@pytest.mark.parametrize("text", PROBLEMS)
def test_results_are_exact(text: str, forced: list) -> None:
    force(forced, PROBLEMS[text])
    expect_exact_in_tf32(core.parse(text))


@pytest.mark.exhaustive
@pytest.mark.parametrize("text", MORE)
def test_more_results_are_exact(text: str, forced: list) -> None:
    force(forced, MORE[text])
    expect_exact_in_tf32(core.parse(text))


def test_both_operands_are_the_one_in_local_memory(forced: list) -> None:
    force(forced, (256, 64, 2))
    tile, _ = forced
    assert filters.turned(tile.m, tile.n, 40, 300) and not filters.turned(tile.m, tile.n, 300, 40)
    for sizes in ("ic300 iw12 oc40", "ic40 iw12 oc300"):
        expect_exact_in_tf32(core.parse(f"conv backward_filter n9 {sizes} kw1"))


def test_arrays_that_are_not_aligned(forced: list) -> None:
    force(forced, (64, 64, 2))
    expect_exact_at_odd_addresses(core.parse("conv backward_filter n5 ic40 iw48 oc70 kw1"))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nan_and_infinity_reach_only_what_meets_them(value: float, forced: list) -> None:
    force(forced, (64, 64, 3))
    problem = core.parse("conv backward_filter n5 ic64 ih4 iw5 oc64 kh1 kw1")
    arrays = {name: np.where(array == 0, 1, array) for name, array in whole_numbers(problem).items()}
    arrays["x"][1, 42, 3, 4] = arrays["dy"][4, 20, 0, 1] = value
    with np.errstate(invalid="ignore"):
        exact = reference(problem, arrays)
    result = np.zeros(exact.shape, np.float32)
    Context.on(None).plan(problem, algorithm="gpu_gemm").run(**arrays, dw=result)
    np.testing.assert_array_equal(result, exact)


def test_operands_are_rounded_to_the_nearest(forced: list) -> None:
    force(forced, (64, 64, 2))
    expect_operands_rounded_to_nearest(core.parse("conv backward_filter n9 ic64 ih4 iw5 oc64 kh1 kw1"))


@pytest.mark.parametrize(
    "text",
    [
        "conv backward_filter n2 ic64 ih4 iw5 oc64 kh1 kw2",
        "conv backward_filter n2 ic64 ih4 iw6 oc64 kh1 kw1 ph1",
        "conv backward_filter n2 ic64 ih7 iw7 oc64 kh1 kw1",
        "conv backward_filter n2 ic64 ih4 iw5 oc64 kh1 kw1 sh2 sw2",
        "conv backward_filter f16 n2 ic64 ih4 iw5 oc64 kh1 kw1",
        "conv forward n2 ic64 ih4 iw5 oc64 kh1 kw1",
        "conv backward_data n2 ic64 ih4 iw5 oc64 kh1 kw1",
    ],
)
def test_other_problems_are_left_to_other_tiles(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    products = products_of(core.parse(text), monkeypatch)
    assert products and not any(serves(tile_of(64, 64), product) for product in products)


def test_rows_fit_the_kernel() -> None:
    tiles = [tile for name in ("nvidia", "nvidia:tf32") for tile in rows(name, 4) if tile.filters]
    assert len(tiles) == 4
    for tile in tiles:
        assert tile.m == 4 * tile.item_m and tile.item_n == 2 and tile.micro == "wgmma" and tile.tf32, tile
        stages = filters.stages(tile.m, tile.n, tile.busy_vectors)
        assert stages >= filters.FEWEST_STAGES, tile
        assert stages * filters.step_bytes(tile.m, tile.n) + 1024 <= HOPPER_LOCAL_MEMORY // tile.busy_vectors, tile


@pytest.mark.parametrize("rows_, columns, pixels", [(256, 64, 64 * 3136), (64, 256, 8 * 3136), (1024, 256, 64 * 196)])
def test_gradients_of_filters_of_one_tap_choose_it(
    rows_: int, columns: int, pixels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLGRAFT_PRECISION", "tf32")
    device = an_h200()
    product = ProductShape(rows_, columns, pixels, 1, vectors=True)
    chosen = choose(product, device, 4)
    assert chosen.tile.filters and chosen.parts > 1 and chosen.chunks * chosen.tile.k <= SUMMED_DEPTH
    assert not choose(replace(product, vectors=False), device, 4).tile.filters
    monkeypatch.delenv("CLGRAFT_PRECISION")
    assert not choose(product, device, 4).tile.filters
    monkeypatch.setenv("CLGRAFT_PRECISION", "tf32")
    with pytest.raises(Declined, match="2 parts"):
        insist(product, device, 4, chosen.tile.name, 1)
