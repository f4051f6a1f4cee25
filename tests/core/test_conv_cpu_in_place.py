"""Products of matrices on CPU devices that read weights and pixels where they lie."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest

from clgraft import core
from clgraft.core.errors import Declined
from clgraft.core.operators.conv import past_caches
from clgraft.core.operators.conv.gemm_cpu import filter_in_place, gemm, pairs
from clgraft.core.operators.conv.gemm_cpu.dense import can_be_dense
from clgraft.core.planning.launches import Local
from clgraft.core.problem import ceil_div
from clgraft.core.session.context import Context
from tests.core.conv_checks import OUTPUTS, check, random_arrays, reference, whole_numbers
from tests.core.guarded_memory import check_within_pages

pytestmark = pytest.mark.skipif(not core.context().device.is_cpu, reason="kernels for CPU devices")

# rows that fill no tile; tiles that end early in the last image, in all of its last channels, or lie in several images
PRODUCTS = {
    "early": "n1 ic13 ih7 iw7 oc19 kh1 kw1",
    "one pixel": "n1 ic70 ih1 iw1 oc3 kh1 kw1",
    "one pixel, images": "n9 ic20 ih1 iw1 oc30 kh1 kw1 b1",
    "few pixels": "n1 ic50 ih3 iw5 oc41 kh1 kw1",
    "images": "n3 ic21 ih4 iw4 oc9 kh1 kw1",
    "groups": "g3 n2 ic15 ih5 iw11 oc39 kh1 kw1",
    "whole tiles": "n2 ic17 ih8 iw12 oc24 kh1 kw1",
    "doubles": "f64 n1 ic13 ih7 iw7 oc19 kh1 kw1 b1",
    "halves": "f16 n1 ic13 ih7 iw7 oc19 kh1 kw1",
}
# pieces of one pixel, of vectors and more; the last row ends where x does, or before; every row or column is met
STRIDED = {
    "ends with x": "n2 ic13 ih9 iw41 oc19 kh1 kw1 sh2 sw2 b1",
    "ends before x": "n3 ic21 ih8 iw6 oc9 kh1 kw1 sh2 sw2",
    "one column": "n5 ic7 ih30 iw3 oc11 kh1 kw1 sh1 sw4",
    "rows": "g3 n2 ic15 ih11 iw50 oc39 kh1 kw1 sh3 sw1",
    "columns": "n2 ic17 ih3 iw130 oc24 kh1 kw1 sh1 sw3",
    "volumes": "n2 ic6 id5 ih7 iw9 oc10 kd1 kh1 kw1 sd2 sh3 sw2",
    "doubles": "f64 n1 ic13 ih9 iw9 oc19 kh1 kw1 sh2 sw2",
    "halves": "f16 n1 ic13 ih9 iw37 oc19 kh1 kw1 sh2 sw2",
    "channels in parts": "n2 ic900 ih5 iw9 oc9 kh1 kw1 sh2 sw2",
}
# besides those: sums of several parts, rows longer than what is put together, planes and rows that no pixel meets
SPREAD = {
    **STRIDED,
    "outputs in parts": "n2 ic9 ih5 iw9 oc900 kh1 kw1 sh2 sw2",
    "long rows": "n2 ic9 ih4 iw5000 oc3 kh1 kw1 sh3 sw2",
    "far apart": "n1 ic3 ih1 iw2900 oc5 kh1 kw1 sh1 sw1000",
    "far planes": "n2 ic3 id7 ih31 iw90 oc5 kd1 kh1 kw1 sd5 sh30 sw2",
    "small images": "n30 ic20 ih3 iw3 oc11 kh1 kw1 sh2 sw2",
    "brains": "bf16 n3 ic13 ih9 iw37 oc20 kh1 kw1 sh2 sw2",
}
GATHERED = {
    "strided taps": "n2 ic5 ih9 iw11 oc11 kh3 kw3 sh2 sw2 ph1 pw1",
    "groups": "g2 n1 ic6 ih9 iw9 oc22 kh5 kw5",
}
BOTH = ("forward", "backward_data")
# pixels of the last tile of three vectors
LEFT = {"30 pixels left": "n2 ih7 iw9", "a pixel left": "n1 ih7 iw7", "17 pixels left": "n1 ih5 iw13"}


def named(text: str, direction: str) -> core.ConvProblem:
    return core.parse(f"conv {direction} {text}")


@pytest.fixture
def never_dense(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let products in place collect the pixels of a stride."""
    monkeypatch.setattr(gemm, "dense_pays", lambda *problem: False)


def kernels(problem: core.ConvProblem) -> list[str]:
    launches = core.context().choose(problem, gemm.NAME).launches.launches
    return [launch.kernel.function_name for launch in launches]


@pytest.mark.parametrize("direction", BOTH)
def test_weights_are_packed_only_where_they_cannot_be_read_in_place(direction: str) -> None:
    assert kernels(named(PRODUCTS["early"], direction)) == ["conv_plain"]
    assert len(kernels(named(PRODUCTS["halves"], direction))) == 2
    taps = "n1 ic5 ih9 iw9 oc11 kh3 kw3 ph1 pw1"
    expected = ["conv_gather"] if direction == "forward" else ["pack_weights", "conv_gather"]
    assert kernels(named(taps, direction)) == expected


@pytest.mark.parametrize("direction", OUTPUTS)
@pytest.mark.parametrize("name", PRODUCTS)
def test_matches_float64(name: str, direction: str) -> None:
    problem = named(PRODUCTS[name], direction)
    if problem.dtype == "float64" and not core.context().device.has_fp64:
        pytest.skip("the device has no float64")
    for accumulate in (False, True):
        check(core.context(), problem, gemm.NAME, accumulate=accumulate)


@pytest.mark.parametrize("inputs, most", [(1000, 600), (1024, 256), (2048, 192)])
def test_steps_whose_weights_share_few_sets_of_a_cache_are_multiplied_in_parts(inputs: int, most: int) -> None:
    problem, context = named(f"n2 ic{inputs} ih3 iw5 oc600 kh1 kw1", "backward_data"), core.context()
    blocking = gemm.cheapest(problem, context.planner, gemm.product_grid(problem), None).blocking
    parts = ceil_div(600, most)
    assert blocking.part == ceil_div(600, parts)
    for accumulate in (False, True):
        check(context, problem, gemm.NAME, accumulate=accumulate)


@pytest.mark.parametrize("name", STRIDED)
def test_strided_pixels_match_float64(name: str, never_dense: None) -> None:
    problem = named(STRIDED[name], "forward")
    if problem.dtype == "float64" and not core.context().device.has_fp64:
        pytest.skip("the device has no float64")
    for accumulate in (False, True):
        check(Context.on(None), problem, gemm.NAME, accumulate=accumulate)


@pytest.mark.parametrize("at_end", [False, True], ids=["page begins", "page ends"])
@pytest.mark.parametrize("name", STRIDED)
def test_strided_pixels_touch_nothing_beside_their_arrays(name: str, at_end: bool, never_dense: None) -> None:
    check_within_pages(named(STRIDED[name], "forward"), gemm.NAME, at_end)


@pytest.mark.parametrize("name", SPREAD)
def test_pixels_that_are_spread_match_float64(name: str) -> None:
    """One launch multiplies and spreads, but for the packing of 16 bits."""
    problem = named(SPREAD[name], "backward_data")
    if problem.dtype == "float64" and not core.context().device.has_fp64:
        pytest.skip("the device has no float64")
    algorithm = pairs.NAME if problem.dtype == "bfloat16" else gemm.NAME
    context = Context.on(None)
    context.device = replace(context.device, has_pair_products=True, has_slow_pairs=False)
    for accumulate in (False, True):
        check(context, problem, algorithm, accumulate=accumulate)
    launches = context.choose(problem, algorithm).launches.launches
    assert [launch.kernel.function_name for launch in launches if not launch.prepares] == ["conv_plain"]


@pytest.mark.parametrize("at_end", [False, True], ids=["page begins", "page ends"])
@pytest.mark.parametrize("name", [name for name in SPREAD if name != "brains"])
def test_pixels_that_are_spread_touch_nothing_beside_their_arrays(name: str, at_end: bool) -> None:
    check_within_pages(named(SPREAD[name], "backward_data"), gemm.NAME, at_end)


def test_pixels_in_the_padding_or_too_far_apart_are_not_spread() -> None:
    assert "conv_phases" in kernels(named("n1 ic4 ih9 iw9 oc4 kh1 kw1 sh2 sw2 ph1 pw1", "backward_data"))
    for stride, spread in ((1024, True), (1025, False)):
        assert can_be_dense(named(f"n1 ic4 ih1 iw4000 oc4 kh1 kw1 sh1 sw{stride}", "backward_data")) == spread


def pixels_met(problem: core.Problem) -> np.ndarray:
    """Return which elements of a plane of x a kernel of one tap meets."""
    met = np.zeros(problem.in_size, bool)
    met[:: problem.stride[0], :: problem.stride[1]] = True
    return met


@pytest.mark.parametrize("name", ["ends with x", "rows", "halves"])
def test_what_no_pixel_meets_keeps_its_bits(name: str) -> None:
    """Where products are added, negative zeros and others stay as they are."""
    problem, context = named(SPREAD[name], "backward_data"), core.context()
    arrays = random_arrays(problem)
    plan = context.plan(problem, algorithm=gemm.NAME)
    met = pixels_met(problem)
    for value in (-0.0, 0.1):
        result = np.full(plan.arguments[-1].shape, value, problem.dtype)
        before = result.copy()
        given = {argument.name: arrays[argument.name] for argument in plan.arguments if argument.role == "in"}
        plan.run(**given, dx=core.accumulate(result))
        assert result[:, :, ~met].tobytes() == before[:, :, ~met].tobytes()
        assert (result[:, :, met] != before[:, :, met]).mean() > 0.9


@pytest.mark.parametrize("name", ["ends with x", "one column", "rows"])
def test_nan_stays_at_its_strided_pixel(name: str, never_dense: None) -> None:
    """What a vector of a piece reads after its pixels reaches no result; nor do elements that no pixel meets."""
    problem = named(STRIDED[name], "forward")
    arrays = random_arrays(problem)
    arrays["x"][:, :, ~pixels_met(problem)] = np.nan
    arrays["x"][0, 1, 0, 0] = np.nan
    result = compute(Context.on(None), problem, arrays)
    broken = np.zeros(result.shape, bool)
    broken[0, : problem.out_channels // problem.groups, 0, 0] = True
    assert np.array_equal(np.isnan(result), broken)


def test_pixels_are_collected_apart_where_several_blocks_of_rows_need_them() -> None:
    context = Context.on(None)
    context.device = replace(context.device, compute_units=2, vector_width=16, local_memory=1 << 20)
    few = named("n8 ic256 ih56 iw56 oc128 kh1 kw1 sh2 sw2", "forward")
    many = named("n1 ic1024 ih14 iw14 oc2048 kh1 kw1 sh2 sw2", "forward")
    assert not gemm.dense_pays(few, context.planner)
    assert gemm.dense_pays(many, context.planner)
    assert gemm.dense_pays(named("n1 ic4 ih9 iw9 oc4 kh1 kw1 sh2 sw2 ph1 pw1", "forward"), context.planner)


@pytest.mark.parametrize("at_end", [False, True], ids=["page begins", "page ends"])
@pytest.mark.parametrize("direction", OUTPUTS)
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_touch_nothing_beside_their_arrays(name: str, direction: str, at_end: bool) -> None:
    """Each array ends where a page without access begins; a single step over it ends the process."""
    check_within_pages(named(PRODUCTS[name], direction), gemm.NAME, at_end)


@pytest.mark.parametrize("at_end", [False, True], ids=["page begins", "page ends"])
@pytest.mark.parametrize("name", GATHERED)
def test_gathered_products_touch_nothing_beside_their_arrays(name: str, at_end: bool) -> None:
    check_within_pages(named(GATHERED[name], "forward"), gemm.NAME, at_end)


def compute(context: Context, problem: core.ConvProblem, arrays: dict[str, np.ndarray], **settings: int) -> np.ndarray:
    plan = context.plan_launches(problem, gemm.plan(problem, context.planner, settings), gemm.NAME)
    result = np.full(plan.arguments[-1].shape, np.nan, problem.dtype)
    given = {argument.name: arrays[argument.name] for argument in plan.arguments if argument.role == "in"}
    plan.run(**given, **{OUTPUTS[problem.direction]: result})
    return result


@pytest.mark.parametrize("direction", BOTH)
@pytest.mark.parametrize("size", LEFT.values(), ids=LEFT)
def test_every_tile_gives_the_same_bits(size: str, direction: str) -> None:
    """With vectors of 16 lanes, the last tiles of three and two vectors have all, one or two of them."""
    problem, context = named(f"{size} ic90 oc70 kh1 kw1", direction), Context.on(None)
    arrays = random_arrays(problem)
    expected = compute(context, problem, arrays)
    for vectors in gemm.VECTORS:
        assert np.array_equal(compute(context, problem, arrays, vectors=vectors), expected)


@pytest.mark.parametrize("direction", BOTH)
@pytest.mark.parametrize("size", LEFT.values(), ids=LEFT)
def test_every_tile_of_16_bits_gives_the_same_bits(size: str, direction: str) -> None:
    problem, context = named(f"f16 {size} ic90 oc70 kh1 kw1", direction), Context.on(None)
    arrays = random_arrays(problem)
    expected = compute(context, problem, arrays)
    counts = gemm.tile_vectors(problem, context.planner, gemm.product_grid(problem))
    assert (gemm.LINE_VECTORS in counts) == (context.device.vector_width >= 16)
    for vectors in counts:
        assert np.array_equal(compute(context, problem, arrays, vectors=vectors), expected)


@pytest.mark.parametrize("direction", BOTH)
@pytest.mark.parametrize("name", ["early", "few pixels", "images"])
def test_nan_stays_at_its_pixel(name: str, direction: str) -> None:
    """What a tile that ends early reads of the next channel reaches no result."""
    problem = named(PRODUCTS[name], direction)
    source = "x" if direction == "forward" else "dy"
    arrays = random_arrays(problem)
    arrays[source][0, 1:, 0, 0] = np.nan
    result = compute(Context.on(None), problem, arrays)
    broken = np.zeros(result.shape, bool)
    broken[0, :, 0, 0] = True
    assert np.array_equal(np.isnan(result), broken)


def test_narrow_tiles_serve_planes_that_leave_wide_ones_empty() -> None:
    """49 pixels fill 77 % of four vectors, but 51 % of six; 96 fill six. 289 leave one vector over in both."""
    context = Context.on(None)
    context.device = replace(context.device, vector_width=16, compute_units=2)
    for size, vectors in (("ih7 iw7", 2), ("ih8 iw12", 3), ("ih17 iw17", 3)):
        problem = core.parse(f"conv forward n1 ic64 {size} oc96 kh1 kw1")
        product = gemm.cheapest(problem, context.planner, gemm.forward_grid(problem), None)
        assert product.builder.tile.vectors == vectors


def test_what_is_stored_past_caches_has_tiles_of_lines_where_products_are_few() -> None:
    """The products of 512 channels take so long that parts of lines do not matter."""
    context = Context.on(None)
    context.device = replace(context.device, vector_width=16, compute_units=2)
    for outgrows, dtype, channels, vectors in (
        (True, "f16", 64, gemm.LINE_VECTORS),
        (True, "bf16", 64, gemm.LINE_VECTORS),
        (True, "f16", 512, 3),
        (False, "f16", 64, 3),
        (True, "f32", 64, 3),
    ):
        problem = core.parse(f"conv forward {dtype} n2 ic{channels} ih56 iw56 oc256 kh1 kw1")
        with mock.patch.object(past_caches, "outgrows_caches", return_value=outgrows):
            product = gemm.cheapest(problem, context.planner, gemm.forward_grid(problem), None)
        assert product.builder.tile.vectors == vectors, problem


# blocks that begin and end in the middle of an image, one that holds several, items that share rows and columns
FILTERS = {
    "blocks": "n3 ic21 ih13 iw19 oc50 kh1 kw1",
    "images": "n40 ic70 ih3 iw5 oc41 kh1 kw1",
    "columns": "n2 ic300 ih5 iw7 oc19 kh1 kw1",
    "rows": "n2 ic19 ih5 iw7 oc300 kh1 kw1",
    "groups": "g3 n2 ic15 ih15 iw11 oc39 kh1 kw1",
    "stride": "n2 ic13 ih33 iw38 oc40 kh1 kw1 sh2 sw2",
    "stride and padding": "n2 ic13 ih17 iw11 oc40 kh1 kw1 sh3 sw2 ph1 pw1",
    "doubles": "f64 n2 ic21 ih13 iw19 oc50 kh1 kw1",
    "halves": "f16 n3 ic21 ih13 iw19 oc50 kh1 kw1",
    "halves of small images": "f16 g2 n40 ic46 ih3 iw5 oc70 kh1 kw1",
    "halves, stride": "f16 n2 ic13 ih33 iw38 oc40 kh1 kw1 sh2 sw2",
    "brains": "bf16 n3 ic21 ih13 iw19 oc50 kh1 kw1",
}


@pytest.mark.parametrize("workers", [1, 2, 5, 64])
@pytest.mark.parametrize("turned", [0, 1])
@pytest.mark.parametrize("name", FILTERS)
def test_filters_of_every_tile(name: str, turned: int, workers: int) -> None:
    problem, context = named(FILTERS[name], "backward_filter"), Context.on(None)
    if problem.dtype == "float64" and not context.device.has_fp64:
        pytest.skip("the device has no float64")
    context.device = replace(context.device, compute_units=workers)
    arrays = whole_numbers(problem)
    expected = reference(problem, arrays).astype(problem.dtype)
    for vectors in gemm.VECTORS:
        assert np.array_equal(compute(context, problem, arrays, vectors=vectors, turned=turned), expected)


@pytest.fixture
def never_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let gradients of filters collect the pixels of a stride where they transpose them."""
    monkeypatch.setattr(filter_in_place, "collect_cycles", lambda *problem: 1e15)


STRIDED_FILTERS = {**STRIDED, "images": "n40 ic70 ih5 iw5 oc41 kh1 kw1 sh2 sw2", "stride": FILTERS["stride"]}


@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("name", STRIDED_FILTERS)
def test_filters_that_collect_their_pixels(name: str, workers: int, never_collected: None) -> None:
    problem, context = named(STRIDED_FILTERS[name], "backward_filter"), Context.on(None)
    if problem.dtype == "float64" and not context.device.has_fp64:
        pytest.skip("the device has no float64")
    context.device = replace(context.device, compute_units=workers)
    first = gemm.plan(problem, context.planner, {}).launches[0]
    assert first.kernel.function_name == "filter_in_place"
    arrays = whole_numbers(problem)
    expected = reference(problem, arrays).astype(problem.dtype)
    assert np.array_equal(compute(context, problem, arrays), expected)
    for accumulate in (False, True):
        check(context, problem, gemm.NAME, accumulate=accumulate)


@pytest.mark.parametrize("at_end", [False, True], ids=["page begins", "page ends"])
@pytest.mark.parametrize("name", STRIDED_FILTERS)
def test_collected_pixels_touch_nothing_beside_their_arrays(name: str, at_end: bool, never_collected: None) -> None:
    check_within_pages(named(STRIDED_FILTERS[name], "backward_filter"), gemm.NAME, at_end, Context.on(None))


@pytest.mark.parametrize("name", ["ends with x", "one column", "rows"])
def test_nan_that_no_pixel_meets_reaches_no_filter(name: str, never_collected: None) -> None:
    problem = named(STRIDED_FILTERS[name], "backward_filter")
    arrays = random_arrays(problem)
    arrays["x"][:, :, ~pixels_met(problem)] = np.nan
    assert np.isfinite(compute(Context.on(None), problem, arrays)).all()


def test_pixels_of_filters_are_collected_apart_where_several_items_need_them() -> None:
    device = replace(core.context().device, vector_width=16, compute_units=2)
    for text, expected in (
        ("n8 ic256 ih56 iw56 oc128 kh1 kw1 sh2 sw2", True),
        ("n8 ic512 ih28 iw28 oc1024 kh1 kw1 sh2 sw2", False),
        ("n8 ic16 ih9 iw9 oc8 kh1 kw1 sh2 sw2 ph1 pw1", False),
    ):
        split = filter_in_place.choose(named(text, "backward_filter"), SimpleNamespace(device=device), {})
        assert split.in_grid == expected


def test_the_side_with_fewer_channels_is_transposed() -> None:
    device = replace(core.context().device, vector_width=16, compute_units=2)
    planner = SimpleNamespace(device=device)
    for inputs, outputs in ((64, 256), (256, 64)):
        problem = core.parse(f"conv backward_filter n8 ic{inputs} ih56 iw56 oc{outputs} kh1 kw1")
        split = filter_in_place.choose(problem, planner, {})
        assert split.turned == (inputs < outputs)
        assert -256 % split.tile.rows <= 8  # few rows of the last tile are empty


def test_filters_are_summed_apart_where_that_saves_more_than_a_launch() -> None:
    device = replace(core.context().device, vector_width=16, compute_units=16, local_memory=1 << 20)
    problem = core.parse("conv backward_filter n8 ic1024 ih14 iw14 oc256 kh1 kw1")
    large = core.parse("conv backward_filter n8 ic64 ih56 iw56 oc256 kh1 kw1")
    for seconds, each, direct in ((0.0, problem, False), (1e-4, problem, True), (1e-4, large, False)):
        changed = replace(device, launch_seconds=seconds, launch_seconds_of_a_unit=0.0)
        assert filter_in_place.choose(each, SimpleNamespace(device=changed), {}).direct == direct


def test_filters_have_tiles_of_one_vector_where_channels_fill_no_two() -> None:
    """Such tiles load an element for each multiply-add."""
    device = replace(core.context().device, vector_width=16, compute_units=2)
    planner = SimpleNamespace(device=device)
    for text, vectors in (
        ("n8 ic64 ih56 iw56 oc256 kh1 kw1", 2),
        ("n8 ic512 ih28 iw28 oc128 kh1 kw1", 2),
        ("n8 ic32 ih112 iw112 oc16 kh1 kw1", 1),
    ):
        assert filter_in_place.choose(named(text, "backward_filter"), planner, {}).tile.vectors == vectors


def test_settings_of_filters_that_do_not_fit_are_declined() -> None:
    planner = core.context().planner
    for text, settings in (
        ("n1 ic4 ih5 iw5 oc4 kh3 kw3", {"vectors": 2, "turned": 1}),
        ("n1 ic4 ih5 iw5 oc4 kh1 kw1", {"vectors": 4, "turned": 1}),
        ("n1 ic4 ih5 iw5 oc4 kh1 kw1", {"turned": 1}),
    ):
        with pytest.raises(Declined):
            gemm.plan(named(text, "backward_filter"), planner, settings)


@pytest.mark.parametrize("dtype", ["", "f16 "])
def test_filters_are_gathered_where_a_block_does_not_fit_local_memory(dtype: str) -> None:
    context = Context.on(None)
    problem = core.parse(f"conv backward_filter {dtype}n8 ic64 ih56 iw56 oc256 kh1 kw1")
    for memory, kernel in ((64 * 1024, "filter_in_place"), (16 * 1024, "conv_filter")):
        context.device = replace(context.device, local_memory=memory)
        launches = gemm.plan(problem, context.planner, {}).launches
        assert launches[0].kernel.function_name == kernel
        used = sum(argument.nbytes for argument in launches[0].arguments if isinstance(argument, Local))
        assert used <= memory
