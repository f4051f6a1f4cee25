"""Convolutions of one tap on Hopper's units by work-groups that walk over tiles, computed through local memory here.

Data are small whole numbers, whose products and sums are exact in TF32 and float32.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from clgraft import core
from clgraft.core.errors import Declined
from clgraft.core.operators.conv.gemm_gpu.product import choose, insist
from clgraft.core.operators.conv.gemm_gpu.stream import STREAM
from clgraft.core.operators.conv.gemm_gpu.tile import ProductShape, Tile
from clgraft.core.operators.conv.gemm_gpu.tiles import rows
from clgraft.core.operators.conv.gemm_gpu.wgmma import WGMMA
from clgraft.core.runtime.toolchains.nvidia import HOPPER_LOCAL_MEMORY, units_of
from clgraft.core.session.context import Context
from tests.core.conv_checks import (
    OUTPUTS,
    check,
    expect_exact_at_odd_addresses,
    expect_exact_in_tf32,
    expect_operands_rounded_to_nearest,
    expect_what_follows,
    force_choices,
    products_of,
    reference,
    whole_numbers,
)
from tests.core.test_epilogues import BOTH

ROW = next(tile for tile in rows("nvidia:tf32", 4) if tile.form is WGMMA)
# problem: rows and pixels of a tile
PROBLEMS = {
    "conv forward n3 ic64 ih4 iw5 oc70 kh1 kw1 b1": (64, 64),
    "conv forward g2 n2 ic64 ih2 iw38 oc180 kh1 kw1": (64, 64),
    "conv backward_data g2 n7 ic140 ih2 iw6 oc192 kh1 kw1": (128, 64),
    "conv backward_data n7 ic64 iw100 oc96 kw1": (64, 128),
}
MORE = {
    "conv forward n2 ic96 id3 ih4 iw8 oc140 kd1 kh1 kw1": (128, 128),
    "conv forward n1 ic256 iw700 oc140 kw1": (64, 64),
    "conv backward_data n70 ic200 ih2 iw2 oc64 kh1 kw1": (256, 64),
    "conv forward n1 ic32 iw4 oc5 kw1": (64, 64),
}


def tile_of(m: int, n: int, tf32: bool = True) -> Tile:
    return replace(ROW, m=m, n=n, item_m=m // 4, form=STREAM, operands="tf32" if tf32 else "float32")


@pytest.fixture
def forced(monkeypatch: pytest.MonkeyPatch) -> list:
    """A tile, which is then chosen for every product."""
    return force_choices(monkeypatch)


@pytest.mark.parametrize("text", PROBLEMS)
def test_results_are_exact(text: str, forced: list) -> None:
    forced[:] = [tile_of(*PROBLEMS[text])]
    expect_exact_in_tf32(core.parse(text))


@pytest.mark.exhaustive
@pytest.mark.parametrize("text", MORE)
def test_more_results_are_exact(text: str, forced: list) -> None:
    forced[:] = [tile_of(*MORE[text])]
    expect_exact_in_tf32(core.parse(text))


@pytest.mark.parametrize("direction", ["forward", "backward_data"])
def test_three_products_have_the_accuracy_of_float32(direction: str, forced: list) -> None:
    forced[:] = [tile_of(64, 64, tf32=False)]
    problem = core.parse("conv n3 ic64 ih4 iw5 oc96 kh1 kw1").with_direction(direction)
    check(Context.on(None), problem, "gpu_gemm", accumulate=direction == "forward", seed=5)


def test_what_follows_is_computed(forced: list) -> None:
    forced[:] = [tile_of(64, 64)]
    expect_what_follows(core.parse(f"fused {next(iter(PROBLEMS))} {BOTH}"))


@pytest.mark.parametrize("accumulate", [False, True])
def test_arrays_that_are_not_aligned(accumulate: bool, forced: list) -> None:
    forced[:] = [tile_of(64, 64)]
    expect_exact_at_odd_addresses(core.parse(next(iter(PROBLEMS))), accumulate)


@pytest.mark.parametrize("direction, value", [("forward", np.nan), ("backward_data", np.inf)])
def test_nan_and_infinity_reach_only_what_meets_them(direction: str, value: float, forced: list) -> None:
    forced[:] = [tile_of(64, 64)]
    problem = core.parse("conv n3 ic64 ih4 iw5 oc64 kh1 kw1").with_direction(direction)
    arrays = whole_numbers(problem)
    source, w = next(arrays[name] for name in arrays if name != "w"), arrays["w"]
    w[w == 0] = 1
    source[source == 0] = 1
    source[1, 42, 3, 4] = value
    w[42, 20] = w[21, 42] = value
    with np.errstate(invalid="ignore"):
        exact = reference(problem, arrays)
    result = np.zeros(exact.shape, np.float32)
    Context.on(None).plan(problem, algorithm="gpu_gemm").run(**arrays, **{OUTPUTS[direction]: result})
    np.testing.assert_array_equal(result, exact)


@pytest.mark.parametrize("direction", ["forward", "backward_data"])
def test_operands_are_rounded_to_the_nearest(direction: str, forced: list) -> None:
    forced[:] = [tile_of(64, 64)]
    expect_operands_rounded_to_nearest(core.parse("conv n3 ic64 ih4 iw5 oc64 kh1 kw1").with_direction(direction))


@pytest.mark.parametrize(
    "text",
    [
        "conv forward n2 ic64 ih4 iw5 oc64 kh1 kw2",
        "conv forward n2 ic64 ih4 iw6 oc64 kh1 kw1 ph1",
        "conv forward n2 ic64 ih4 iw5 oc64 kh1 kw1 sh2 sw2",
        "conv forward n2 ic64 ih3 iw5 oc64 kh1 kw1",
        "conv forward f16 n2 ic64 ih4 iw5 oc64 kh1 kw1",
        "conv forward n2 ic40 ih4 iw5 oc64 kh1 kw1",
        "conv forward n2 ic16 ih4 iw5 oc64 kh1 kw1",
        "conv forward n2 ic1024 ih4 iw5 oc64 kh1 kw1",
        "conv backward_data n2 ic64 ih4 iw5 oc64 kh1 kw1 sh2",
        "conv backward_filter n2 ic64 ih4 iw5 oc64 kh1 kw1",
    ],
)
def test_other_problems_are_left_to_other_tiles(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    products = products_of(core.parse(text), monkeypatch)
    assert products and not any(tile_of(64, 64).serves(product) for product in products)


def test_rows_fit_the_kernel() -> None:
    tiles = [tile for name in ("nvidia", "nvidia:tf32") for tile in rows(name, 4) if tile.form is STREAM]
    assert len(tiles) == 10
    for tile in tiles:
        assert tile.m == 4 * tile.item_m and tile.item_n == 2, tile
        assert tile.threads <= 512, tile
        assert tile.local_bytes <= HOPPER_LOCAL_MEMORY, tile
        products = [ProductShape(64, 4096, depth, 1, depth, one_tap=True) for depth in (64, 128, 256)]
        assert any(tile.serves(product) for product in products), tile


@pytest.mark.parametrize("mode", ["float32", "tf32"])
@pytest.mark.parametrize(
    "rows_, depth, pixels, expected",
    [
        *[(256, 64, 64 * 3136, True), (64, 256, 64 * 3136, True), (512, 128, 64 * 784, True), (64, 64, 3136, True)],
        *[(128, 512, 64 * 784, False), (1024, 256, 64 * 196, False), (256, 1024, 64 * 196, False)],
    ],
)
def test_few_weights_choose_it(
    rows_: int, depth: int, pixels: int, expected: bool, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLGRAFT_PRECISION", mode)
    device = replace(
        core.context().device,
        **{"device_class": "nvidia", "compute_units": 132, "max_work_group_size": 1024, **units_of(90)},
        **{"local_memory": 48 * 1024, "has_wgmma": True},
    )
    product = ProductShape(rows_, pixels, depth, 1, depth, one_tap=True)
    chosen = choose(product, device, 4)
    assert (chosen.tile.form is STREAM) == expected
    assert choose(replace(product, one_tap=False), device, 4).tile.form is not STREAM
    if expected:
        with pytest.raises(Declined):
            insist(product, device, 4, chosen.tile.name, 2)
