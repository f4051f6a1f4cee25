"""Winograd's convolution: against float64, against the direct method's error, and the switch that forbids it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from clgraft import core
from clgraft.core.errors import ArgumentError, Declined
from clgraft.core.operators.conv.register_tile import RegisterTile
from clgraft.core.operators.conv.winograd import backward_filter as winograd_filter
from clgraft.core.operators.conv.winograd import split as winograd_split
from clgraft.core.operators.conv.winograd import tiles as winograd_tiles
from clgraft.core.operators.conv.winograd import winograd
from clgraft.core.problem import ceil_div
from clgraft.core.session.context import Context
from tests.core.conv_checks import DIRECTIONS, FIVES, check, expect_little_more_error, expect_near
from tests.problem_sets import problem_lines


def served(text: str) -> bool:
    """Return whether a problem has 3 x 3 kernels that the method serves; those of 5 x 5 are `FIVES`."""
    problem = core.parse(text)
    return (
        problem.kernel == (3, 3)
        and problem.stride == problem.dilate == (1, 1)
        and problem.groups == 1
        and problem.batch > 0
        and problem.dtype != "float64"
    )


WORTHWHILE = winograd_tiles.worthwhile
SPREAD = 1.0  # transforms mix the elements of a tile

LINES = {name: text for name, text in problem_lines("conv").items() if served(text)}

OTHERS = {
    "one-column-f16": "conv f16 n2 ic35 ih13 iw6 oc30 kh3 kw1 ph1",
    "dilated": "conv n2 ic17 ih19 iw23 oc33 kh3 kw3 ph2 pw2 dh2 dw2",
    "five": "conv n2 ic33 ih9 iw11 oc18 kh5 kw5 ph2 pw2",
    "strided": "conv n2 ic37 ih19 iw22 oc33 kh3 kw3 sh2 sw2 ph1 pw1",
}

pytestmark = pytest.mark.skipif(not core.context().device.is_cpu, reason="kernels for CPU devices")


@pytest.fixture(scope="module", autouse=True)
def whether_or_not_worthwhile() -> Iterator[None]:
    """Serve problems of any size."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(winograd_tiles, "worthwhile", lambda geometry: True)
        yield


@pytest.fixture(scope="module", params=[2, 4])
def tile(request: pytest.FixtureRequest) -> Iterator[int]:
    """One size of tiles for all that is planned."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CLGRAFT_WINOGRAD", str(request.param))
        patch.setenv("CLGRAFT_TUNE", "off")
        yield request.param


@pytest.fixture(scope="module")
def context(tile: int) -> Context:
    return Context.on(None)


def check_twice_and_added(context: Context, problem: core.ConvProblem) -> None:
    """Compare with float64, in two runs with the same bits, and in one that adds to what is there."""
    first = check(context, problem, "winograd", spread=SPREAD)
    assert first.tobytes() == check(context, problem, "winograd", spread=SPREAD).tobytes()
    check(context, problem, "winograd", spread=SPREAD, accumulate=True, seed=3)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", LINES)
def test_matches_float64(context: Context, tile: int, name: str, direction: str) -> None:
    problem = core.parse(LINES[name]).with_direction(direction)
    check(context, problem, "winograd", spread=SPREAD)
    check(context, problem, "winograd", spread=SPREAD, accumulate=True, seed=3)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("outputs", [32, 48, 64])
def test_every_number_of_rows(
    context: Context, tile: int, outputs: int, direction: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole register tiles and smaller ones share the tiles, or in gradients of weights the channels."""
    split = winograd_split.TileSplit(rows=1, block_rows=1, blocks=1, own_weights=False)
    monkeypatch.setattr(winograd_split, "heuristic", lambda geometry, tile, cores: split)  # all else has whole ones
    rows = winograd_tiles.winograd_tile(context.planner, outputs).rows
    for count in range(1, 2 * rows + 1):
        channels, width = (count, 2) if direction == "backward_filter" else (16, count)
        size = f"n1 ic{channels} ih{tile} iw{tile * width} oc{outputs} kh3 kw3 ph1 pw1"
        if direction == "backward_data":
            size = f"n1 ic{outputs} ih{tile} iw{tile * width} oc{channels} kh3 kw3 ph1 pw1"
        check(context, core.parse(f"conv {direction} {size}"), "winograd", spread=SPREAD)


@pytest.mark.parametrize("rows", [1, 2, 4, 6, 8, 12])
def test_last_register_tiles_leave_few_rows_idle(rows: int) -> None:
    tile = RegisterTile(rows, 4, 16)
    for count in range(1, 4 * rows):
        best = min(
            number
            for whole in range(5)
            for last in range(3)
            if (number := whole * rows + last * tile.last_rows) >= count
        )
        assert count <= best == tile.padded(count) <= ceil_div(count, rows) * rows


@pytest.fixture(scope="module", params=["64 cores", "256-bit vectors"])
def other_machine(request: pytest.FixtureRequest, tile: int) -> Context:
    """A context that plans for another machine, and runs on this one."""
    context = Context.on(None)
    changes = {"64 cores": {"compute_units": 64}, "256-bit vectors": {"vector_width": 8}}
    context.device = replace(context.device, **changes[request.param])
    return context


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", ["plain-3x3-bias", "small-planes", "3x3-many-channels", "3x3-asymmetric-channels"])
def test_plans_for_other_machines(other_machine: Context, tile: int, name: str, direction: str) -> None:
    check(other_machine, core.parse(LINES[name]).with_direction(direction), "winograd", spread=SPREAD)


def check_who_transforms(text: str, own_weights: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check a problem where work-items transform their own weights, or all weights are transformed before."""
    monkeypatch.setattr(winograd_tiles, "OWN_WEIGHTS_BYTES", 2**40 if own_weights else 0)
    context = Context.on(None)
    context.device = replace(context.device, compute_units=1)
    for direction in ("forward", "backward_data"):
        check(context, core.parse(text).with_direction(direction), "winograd", spread=SPREAD)


@pytest.mark.parametrize("own_weights", [True, False])
@pytest.mark.parametrize("name", ["many-channels", "3x3-many-channels", "batch-prime"])
def test_who_transforms_the_weights(tile: int, name: str, own_weights: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    check_who_transforms(LINES[name], own_weights, monkeypatch)


@pytest.mark.parametrize("direction", ["forward", "backward_data"])
@pytest.mark.parametrize("vectors", [4, 2])
@pytest.mark.parametrize("name", ["many-channels", "3x3-many-channels", "batch-prime", "strided"])
def test_weights_of_their_own_for_some_of_the_rows(
    tile: int, name: str, vectors: int, direction: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several work-items transform the same weights, with either register tile."""
    context, problem = Context.on(None), core.parse({**LINES, **OTHERS}[name]).with_direction(direction)
    rows = ceil_div(winograd_tiles.Geometry.of(problem, tile).rows, 3)
    chosen = winograd_tiles.winograd_tile(context.planner, 64, vectors), winograd_split.TileSplit(rows, rows, 1, True)
    shared = winograd_split.TileSplit(1, 1, 1, False)
    monkeypatch.setattr(winograd_split, "heuristic", lambda *_: shared)
    monkeypatch.setattr(winograd_split, "own_split", lambda *_: chosen)
    assert kernels(problem, context) == ["winograd"]
    prepared = winograd.plan(problem, context.planner).prepared
    assert prepared is not None and prepared.launches[0].kernel.function_name == "winograd_weights"
    first = check(context, problem, "winograd", spread=SPREAD)
    assert first.tobytes() == check(context, problem, "winograd", spread=SPREAD).tobytes()
    check(context, problem, "winograd", spread=SPREAD, accumulate=True, seed=3)


@pytest.mark.parametrize(
    ("text", "cores"),
    [
        ("conv forward n8 ic512 ih7 iw7 oc512 kh3 kw3 ph1 pw1", {2: False, 16: True}),
        ("conv backward_data n8 ic256 ih14 iw14 oc256 kh3 kw3 ph1 pw1", {2: False, 16: True}),
        ("conv forward n8 ic128 ih28 iw28 oc128 kh3 kw3 ph1 pw1", {2: False, 16: False}),  # these the caches share
        ("conv forward n8 ic512 ih28 iw28 oc512 kh3 kw3 ph1 pw1", {2: False, 16: False}),  # many tiles for each weight
    ],
)
def test_many_cores_transform_many_weights_themselves(text: str, cores: dict[int, bool]) -> None:
    geometry, tiles = winograd_tiles.Geometry.of(core.parse(text), 4), (RegisterTile(6, 4, 16), RegisterTile(12, 2, 16))
    for count, own in cores.items():
        split = winograd_split.heuristic(geometry, tiles[0], count)
        found = winograd_split.own_split(geometry, tiles, split, count)
        assert (found is not None) == own
        if found is not None:
            blocks = ceil_div(geometry.outputs, found[0].columns)
            assert found[1].own_weights and found[1].items(geometry, blocks) * 4 >= count * 3


def kernels(problem: core.ConvProblem, context: Context) -> list[str]:
    """Return the names of the kernels that the method launches."""
    return [launch.kernel.function_name for launch in winograd.plan(problem, context.planner).launches]


@pytest.mark.parametrize("name", ["3x3-many-channels", "batch-prime", "small-planes", "wide-row", "strided"])
def test_filter_in_parts(tile: int, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(winograd_filter, "PART_BYTES", 2**17)
    monkeypatch.setattr(winograd_filter, "SLICED_BYTES", 0)
    monkeypatch.setattr(winograd_filter, "keeps_products", lambda geometry: False)
    problem = core.parse({**LINES, **OTHERS}[name]).with_direction("backward_filter")
    check(Context.on(None), problem, "winograd", spread=SPREAD)
    check(Context.on(None), problem, "winograd", spread=SPREAD, accumulate=True)


@pytest.mark.parametrize("name", [*LINES, *OTHERS])
def test_filter_whose_products_stay_in_a_cache(tile: int, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(winograd_filter, "SLICED_BYTES", 0)
    monkeypatch.setattr(winograd_filter, "keeps_products", lambda geometry: True)
    monkeypatch.setattr(winograd_filter, "BUSY", 0.0)
    problem = core.parse({**LINES, **OTHERS}[name]).with_direction("backward_filter")
    context = Context.on(None)
    if tile == 4 and problem.kernel == (5, 5):
        with pytest.raises(Declined, match="have tiles"):
            winograd.plan(problem, context.planner)
        return
    launches = winograd.plan(problem, context.planner).launches
    assert [launch.kernel.function_name for launch in launches] == ["filter_transforms", "filter_whole"]
    check(context, problem, "winograd", spread=SPREAD)
    check(context, problem, "winograd", spread=SPREAD, accumulate=True)


@pytest.mark.parametrize(("cores", "rows"), [(2, 1), (3, 2), (16, 64)])
@pytest.mark.parametrize("name", [*LINES, *OTHERS])
def test_filter_in_slices(tile: int, name: str, cores: int, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shares of one tile row and of several, slices that reach into the next image, and all rows as one slice."""
    problem = core.parse({**LINES, **OTHERS}[name]).with_direction("backward_filter")
    context = Context.on(None)
    context.device = replace(context.device, compute_units=cores)
    if tile == 4 and problem.kernel == (5, 5):
        with pytest.raises(Declined, match="have tiles"):
            winograd.plan(problem, context.planner)
        return
    monkeypatch.setattr(
        winograd_filter._Filters, "chosen", lambda filters: {"slice": min(rows, filters._geometry.rows)}
    )
    launches = winograd.plan(problem, context.planner).launches
    assert [launch.kernel.function_name for launch in launches] == ["filter_slices", "filter_result"]
    assert launches[0].global_size[0] <= cores
    check(context, problem, "winograd", spread=SPREAD)
    check(context, problem, "winograd", spread=SPREAD, accumulate=True)


def test_tiles_are_sliced_where_products_are_few() -> None:
    context = Context.on(None)
    context.device = replace(context.device, compute_units=2, cache_bytes=2**25)
    for sizes, names in {
        "n8 ic64 ih56 iw56 oc64": ["filter_slices", "filter_result"],
        "n1 ic64 ih56 iw56 oc64": ["filter_slices", "filter_result"],
        "n1 ic128 ih28 iw28 oc128": ["filter_transforms", "filter_whole"],
        "n2 ic128 ih28 iw28 oc128": ["filter_transforms", "filter_product", "filter_result"],
        "n8 ic512 ih14 iw14 oc512": ["filter_transforms", "filter_whole"],
    }.items():
        problem = core.parse(f"conv backward_filter {sizes} kh3 kw3 ph1 pw1")
        filters = winograd_filter.plan_filter(problem, context.planner, winograd_tiles.Geometry.of(problem, 4))
        assert list(dict.fromkeys(launch.kernel.function_name for launch in filters.launches)) == names, sizes
    context.device = replace(context.device, compute_units=64)
    problem = core.parse("conv backward_filter n8 ic64 ih56 iw56 oc64 kh3 kw3 ph1 pw1")
    filters = winograd_filter.plan_filter(problem, context.planner, winograd_tiles.Geometry.of(problem, 4))
    assert len(filters.launches) == 3  # products of 64 cores would not fit the caches


def test_products_stay_in_a_cache_where_they_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CLGRAFT_WINOGRAD", raising=False)
    many = core.parse("conv backward_filter n8 ic512 ih7 iw7 oc512 kh3 kw3 ph1 pw1")
    few = core.parse("conv backward_filter n8 ic128 ih28 iw28 oc128 kh3 kw3 ph1 pw1")
    names = [
        [one.kernel.function_name for one in winograd.plan(each, core.context().planner).launches]
        for each in (many, few)
    ]
    assert ["filter_whole" in each for each in names] == [core.context().device.compute_units <= 128, False]
    assert winograd_tiles.choose(many).tile == 4  # whose products are more, but not written


@pytest.mark.parametrize("mean", [0, 100])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_error_is_at_most_ten_times_the_direct_methods(context: Context, direction: str, mean: float) -> None:
    problem = core.parse("conv n2 ic128 ih14 iw14 oc128 kh3 kw3 ph1 pw1").with_direction(direction)
    expect_little_more_error(context, problem, "winograd", "cpu_gemm", mean)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_two_runs_give_the_same_bits(context: Context, direction: str) -> None:
    problem = core.parse(LINES["3x3-many-channels"]).with_direction(direction)
    first, second = (check(context, problem, "winograd", spread=SPREAD) for _ in range(2))
    assert first.tobytes() == second.tobytes()


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_settings_that_cannot_be_are_declined(context: Context, tile: int, direction: str) -> None:
    problem = core.parse(LINES["3x3-many-channels"]).with_direction(direction)
    for settings in (
        {"tile": 3},
        {"tile": 6 - tile},
        {"parts": 1},
        {"tile": tile, "rows": 1},
        {"tile": tile, "parts": 0},
        {"tile": tile, "slice": 0},
        {"tile": tile, "slice": 1, "whole": 1},
        {"tile": tile, "parts": 1, "whole": 1},
        {"tile": tile, "whole": 2},
    ):
        with pytest.raises(Declined):
            winograd.plan(problem, context, settings)


def test_many_cores_share_the_transformed_weights() -> None:
    problem = core.parse("conv forward n16 ic512 ih7 iw7 oc512 kh3 kw3 ph1 pw1")
    geometry, tile = winograd_tiles.Geometry.of(problem, 4), RegisterTile(6, 4, 16)
    for cores, blocks in ((2, 1), (16, 4), (64, 8)):
        split = winograd_split.heuristic(geometry, tile, cores)
        assert split is not None and not split.own_weights
        parts = ceil_div(8, split.blocks)
        assert split.items(geometry, 8) * 4 >= cores * 3 and parts >= blocks  # an item reads 1 / parts of the weights


def test_small_problems_cost_less_in_small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CLGRAFT_WINOGRAD", raising=False)
    problem = core.parse("conv forward n8 ic256 ih2 iw2 oc256 kh3 kw3 ph1 pw1")
    assert winograd_tiles.choose(problem).tile == 2
    assert winograd_tiles.choose(replace(problem, in_size=(56, 56))).tile == 4


def test_the_switch_forbids_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLGRAFT_WINOGRAD", "off")
    plan = Context.on(None).choose(core.parse(LINES["3x3-many-channels"]))
    assert plan.algorithm != "winograd"
    assert ("winograd", "CLGRAFT_WINOGRAD is off") in plan.declined
    monkeypatch.setenv("CLGRAFT_WINOGRAD", "3")
    with pytest.raises(ArgumentError, match="got CLGRAFT_WINOGRAD='3', expected one of"):
        winograd_tiles.allowed_tiles((3, 3), (4, 2))


@pytest.fixture(scope="module")
def context_of_fives() -> Context:
    return Context.on(None)


@pytest.fixture
def fives(context_of_fives: Context, monkeypatch: pytest.MonkeyPatch) -> Context:
    """A context for 5 x 5 kernels, which have tiles of 2 x 2 outputs alone."""
    monkeypatch.setenv("CLGRAFT_WINOGRAD", "2")
    monkeypatch.setenv("CLGRAFT_TUNE", "off")
    return context_of_fives


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", FIVES)
def test_five_taps_match_float64(fives: Context, name: str, direction: str) -> None:
    problem = core.parse(FIVES[name]).with_direction(direction)
    check(fives, problem, "winograd", spread=SPREAD)
    check(fives, problem, "winograd", spread=SPREAD, accumulate=True, seed=3)


@pytest.mark.parametrize("changes", [{"compute_units": 64}, {"vector_width": 8}], ids=["64 cores", "256-bit vectors"])
def test_five_taps_on_other_machines(fives: Context, changes: dict[str, int]) -> None:
    context = Context.on(None)
    context.device = replace(context.device, **changes)
    for direction in DIRECTIONS:
        check(context, core.parse(FIVES["bias"]).with_direction(direction), "winograd", spread=SPREAD)


@pytest.mark.parametrize("own_weights", [True, False])
def test_who_transforms_five_taps(fives: Context, own_weights: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    check_who_transforms(FIVES["bias"], own_weights, monkeypatch)


@pytest.mark.parametrize("mean", [0, 100])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_five_taps_err_at_most_ten_times_as_much(fives: Context, direction: str, mean: float) -> None:
    problem = core.parse("conv n2 ic128 ih14 iw14 oc128 kh5 kw5 ph2 pw2").with_direction(direction)
    expect_little_more_error(fives, problem, "winograd", "cpu_gemm", mean)


def test_tiles_of_five_taps(fives: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = core.parse("conv forward n8 ic64 ih27 iw27 oc192 kh5 kw5 ph2 pw2")
    tiles = {settings["tile"] for settings in winograd.candidates(problem, fives.planner) if settings}
    assert tiles == {2}
    monkeypatch.setenv("CLGRAFT_WINOGRAD", "4")
    with pytest.raises(Declined, match="CLGRAFT_WINOGRAD is 4, 5 x 5 kernels have tiles"):
        winograd.plan(problem, fives.planner)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_five_taps_where_channels_pay_for_the_transforms(fives: Context, direction: str) -> None:
    many = core.parse("conv n8 ic64 ih27 iw27 oc192 kh5 kw5 ph2 pw2").with_direction(direction)
    few = core.parse("conv n8 ic3 ih32 iw32 oc16 kh5 kw5 ph2 pw2").with_direction(direction)
    for problem, gains in ((many, True), (few, False)):
        geometry = winograd_tiles.Geometry.of(problem, 2)
        assert (winograd_tiles.cost(geometry) < winograd_tiles.direct_cost(geometry)) == gains


# kernels of one row or one column with stride 1
ROWS_AND_COLUMNS = {
    **{name: problem_lines("conv")[name] for name in ("1x7", "7x1", "1x7-many-channels", "5x1-many-channels")},
    "7x1-parts-of-sums": "conv n1 ic200 ih9 iw5 oc20 kh7 kw1 ph3",
    "1x5-f16": "conv f16 n2 ic35 ih6 iw13 oc30 kh1 kw5 pw2 b1",
    "5x1-no-pad": "conv n3 ic17 ih9 iw5 oc20 kh5 kw1",
    "1x3-asymmetric-pad": "conv n2 ic5 ih7 iw9 oc8 kh1 kw3 ph1 pw2 qh0 qw0",
    "3x1": "conv n2 ic66 ih7 iw6 oc40 kh3 kw1 ph1 b1",
    "one-pixel": "conv n40 ic7 ih1 iw1 oc19 kh7 kw1 ph3",
    "pad-above-kernel": "conv n1 ic2 ih4 iw5 oc3 kh1 kw3 ph2 pw5",
    "one-axis": "conv n2 ic17 iw37 oc20 kw7 pw3 b1",
    "one-axis-wide": "conv n1 ic2 iw331 oc3 kw3 pw1",
}


def expect_tiles(problem: core.ConvProblem, tile: int) -> bool:
    """Return whether a problem has such tiles; 7 taps have those of 4 outputs only in sums of many channels."""
    channels = problem.out_channels if problem.direction == "backward_data" else problem.in_channels
    inexact = max(problem.kernel) == 7 and (problem.direction == "backward_filter" or channels < 16)
    if tile == 4 and inexact:
        with pytest.raises(Declined, match=r"CLGRAFT_WINOGRAD is 4, .* kernels have tiles"):
            winograd_tiles.tiles_of(problem)
        return False
    assert winograd_tiles.tiles_of(problem) == (tile,)
    return True


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", ROWS_AND_COLUMNS)
def test_rows_and_columns_match_float64(context: Context, tile: int, name: str, direction: str) -> None:
    problem = core.parse(ROWS_AND_COLUMNS[name]).with_direction(direction)
    if expect_tiles(problem, tile):
        check_twice_and_added(context, problem)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", ["1x7-many-channels", "5x1-many-channels", "one-axis"])
def test_rows_and_columns_on_other_machines(other_machine: Context, tile: int, name: str, direction: str) -> None:
    problem = core.parse(ROWS_AND_COLUMNS[name]).with_direction(direction)
    if expect_tiles(problem, tile):
        check(other_machine, problem, "winograd", spread=SPREAD)


@pytest.mark.parametrize("mean", [0, 100])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(
    "text",
    [
        "conv n2 ic128 ih14 iw14 oc128 kh1 kw7 pw3",
        "conv n8 ic160 ih17 iw17 oc160 kh7 kw1 ph3",
        "conv n1 ic16 ih17 iw17 oc16 kh7 kw1 ph3",
        "conv n2 ic128 ih14 iw14 oc128 kh5 kw1 ph2",
        "conv n2 ic128 ih14 iw14 oc128 kh1 kw3 pw1",
    ],
)
def test_rows_and_columns_err_at_most_ten_times_as_much(
    context: Context, tile: int, text: str, direction: str, mean: float
) -> None:
    problem = core.parse(text).with_direction(direction)
    if expect_tiles(problem, tile):
        expect_little_more_error(context, problem, "winograd", "cpu_gemm", mean)


def test_rows_and_columns_where_they_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CLGRAFT_WINOGRAD", raising=False)
    gains = {
        "conv n2 ic160 ih17 iw17 oc160 kh1 kw7 pw3": {"forward": 4, "backward_data": 4, "backward_filter": 2},
        "conv n1 ic192 ih17 iw17 oc192 kh7 kw1 ph3": {"forward": 4, "backward_data": 4, "backward_filter": 2},
        "conv n8 ic64 ih28 iw28 oc64 kh1 kw5 pw2": {"forward": 4, "backward_data": 4, "backward_filter": 4},
        "conv n1 ic32 ih28 iw28 oc32 kh3 kw1 ph1": {"forward": 4, "backward_data": 4, "backward_filter": 0},
        "conv n1 ic384 ih8 iw8 oc384 kh1 kw3 pw1": {"forward": 4, "backward_data": 4, "backward_filter": 0},
        "conv n8 ic3 ih32 iw32 oc16 kh1 kw7 pw3": {"forward": 0, "backward_data": 0, "backward_filter": 0},
        "conv n4 ic64 iw16000 oc64 kw7 pw3": {"forward": 0, "backward_data": 0, "backward_filter": 0},
    }
    monkeypatch.setattr(winograd_tiles, "worthwhile", WORTHWHILE)
    for text, tiles in gains.items():
        for direction, expected in tiles.items():
            problem = core.parse(text).with_direction(direction)
            try:
                tile = winograd_tiles.choose(problem).tile
            except Declined:
                tile = 0
            assert tile == expected, problem


# taps that are not neighbours: each phase of the dilation has tiles of its own
DILATED = {
    "by-2": "conv n2 ic35 ih13 iw17 oc30 kh3 kw3 ph2 pw2 dh2 dw2 b1",
    "by-3-other-pads": "conv n2 ic5 ih19 iw21 oc7 kh3 kw3 ph1 pw3 qh0 qw5 dh3 dw3",
    "by-4-many-channels": "conv n1 ic130 ih28 iw28 oc70 kh3 kw3 ph4 pw4 dh4 dw4",
    "by-6-more-than-rows": "conv n2 ic20 ih5 iw40 oc12 kh3 kw3 ph6 pw6 dh6 dw6",
    "by-2-pad-above-kernel": "conv n1 ic2 ih4 iw5 oc3 kh3 kw3 ph5 pw6 dh2 dw2",
    "by-2-no-pad": "conv n2 ic66 ih14 iw11 oc8 kh3 kw3 dh2 dw2",
    "two-dilations": "conv n2 ic20 ih9 iw31 oc12 kh3 kw3 ph2 pw3 dh2 dw3",
    "columns-alone": "conv n2 ic20 ih9 iw11 oc12 kh3 kw3 ph1 pw3 dw3",
    "one-pixel": "conv n40 ic7 ih1 iw1 oc19 kh3 kw3 ph2 pw2 dh2 dw2",
    "f16": "conv f16 n2 ic35 ih12 iw13 oc30 kh3 kw3 ph2 pw2 dh2 dw2 b1",
    "row": "conv n2 ic33 iw41 oc20 kw3 pw2 dw2",
    "column": "conv n1 ic20 ih23 iw9 oc20 kh5 kw1 ph4 dh2 dw3",
}


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", DILATED)
def test_dilated_match_float64(context: Context, tile: int, name: str, direction: str) -> None:
    problem = core.parse(DILATED[name]).with_direction(direction)
    check_twice_and_added(context, problem)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", ["by-2", "by-4-many-channels"])
def test_dilated_on_other_machines(other_machine: Context, tile: int, name: str, direction: str) -> None:
    check(other_machine, core.parse(DILATED[name]).with_direction(direction), "winograd", spread=SPREAD)


@pytest.mark.parametrize("own_weights", [True, False])
def test_who_transforms_dilated_weights(tile: int, own_weights: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    check_who_transforms(DILATED["by-2"], own_weights, monkeypatch)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_five_dilated_taps_match_float64(fives: Context, direction: str) -> None:
    problem = core.parse("conv n2 ic19 ih15 iw11 oc33 kh5 kw5 ph4 pw4 dh2 dw2").with_direction(direction)
    check(fives, problem, "winograd", spread=SPREAD)


@pytest.mark.parametrize("mean", [0, 100])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_dilated_err_at_most_ten_times_as_much(context: Context, direction: str, mean: float) -> None:
    problem = core.parse("conv n2 ic128 ih14 iw14 oc128 kh3 kw3 ph2 pw2 dh2 dw2").with_direction(direction)
    expect_little_more_error(context, problem, "winograd", "cpu_gemm", mean)


# 3 x 3 kernels whose even rows and columns of pixels meet 2 taps, the odd ones 1
STRIDED = {
    **{name: problem_lines("conv")[name] for name in ("3x3-stride-2", "3x3-stride-2-even", "asymmetric-pad-stride")},
    "odd-bias": "conv n2 ic17 ih19 iw23 oc33 kh3 kw3 sh2 sw2 ph1 pw1 b1",
    "even-many-channels": "conv n1 ic130 ih14 iw16 oc70 kh3 kw3 sh2 sw2 ph1 pw1",
    "no-pad": "conv n3 ic66 ih8 iw9 oc8 kh3 kw3 sh2 sw2",
    "one-pixel": "conv n40 ic7 ih1 iw1 oc19 kh3 kw3 sh2 sw2 ph1 pw1",
    "pad-2": "conv n2 ic35 ih11 iw8 oc20 kh3 kw3 sh2 sw2 ph2 pw2",
    "pad-above-kernel": "conv n1 ic2 ih4 iw5 oc3 kh3 kw3 sh2 sw2 ph5 pw6",
    "wide-row": "conv n1 ic2 ih4 iw331 oc3 kh3 kw3 sh2 sw2 ph3 pw4 qh2 qw7",
    "f16": "conv f16 n2 ic35 ih12 iw13 oc30 kh3 kw3 sh2 sw2 ph1 b1",
    "bf16": "conv bf16 n2 ic35 ih13 iw12 oc30 kh3 kw3 sh2 sw2 pw1 b1",
}


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", STRIDED)
def test_strided_match_float64(context: Context, tile: int, name: str, direction: str) -> None:
    problem = core.parse(STRIDED[name]).with_direction(direction)
    check_twice_and_added(context, problem)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", ["odd-bias", "even-many-channels"])
def test_strided_on_other_machines(other_machine: Context, tile: int, name: str, direction: str) -> None:
    check(other_machine, core.parse(STRIDED[name]).with_direction(direction), "winograd", spread=SPREAD)


@pytest.mark.parametrize("settings", ["spread", "own_weights"])
@pytest.mark.parametrize("direction", ["forward", "backward_data"])
@pytest.mark.parametrize("name", ["odd-bias", "even-many-channels", "pad-2"])
def test_stages_of_strided_tiles(context: Context, tile: int, name: str, direction: str, settings: str) -> None:
    problem = core.parse(STRIDED[name]).with_direction(direction)
    chosen = next(s for s in winograd.candidates(problem, context.planner) if s.get(settings))
    expect_near(context, problem, winograd.plan(problem, context.planner, chosen), "winograd", 1e-5)


@pytest.mark.parametrize("mean", [0, 100])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("channels", [3, 128, 512])
def test_strided_err_at_most_ten_times_as_much(context: Context, channels: int, direction: str, mean: float) -> None:
    outputs = 64
    if direction == "backward_data":
        channels, outputs = outputs, channels  # those that are summed
    problem = core.parse(f"conv {direction} n2 ic{channels} ih28 iw28 oc{outputs} kh3 kw3 sh2 sw2 ph1 pw1")
    expect_little_more_error(context, problem, "winograd", "cpu_gemm", mean)


@pytest.mark.parametrize("pad", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("size", [3, 4, 5, 8, 9])
def test_strided_tiles_cover_the_gradient_of_the_source(size: int, pad: int) -> None:
    problem = core.parse(f"conv backward_data n1 ic3 ih{size} iw7 oc5 kh3 kw3 sh2 sw2 ph{pad} pw1")
    geometry = winograd_tiles.Geometry.of(problem, 2)
    met = set()
    for output in range(geometry.size[0]):
        for place, taps in ((0, (1,)), (1, (2, 0))):  # a pixel of one tap, and one of two
            pixel = 2 * output + place + geometry.target_begin[0]
            met.add(pixel)
            for position, tap in enumerate(taps):
                assert pixel == 2 * (output + geometry.begin[0] + position) + tap - pad
    assert set(range(size)) <= met <= set(range(-1, size + 1))


@pytest.mark.parametrize(("tile", "products"), [(2, 25), (4, 81)])
def test_strided_products_leave_zeros_out(tile: int, products: int) -> None:
    for direction in DIRECTIONS:
        problem = core.parse(f"conv {direction} n1 ic3 ih16 iw16 oc5 kh3 kw3 sh2 sw2 ph1 pw1")
        geometry = winograd_tiles.Geometry.of(problem, tile)
        assert geometry.products == products
        assert geometry.operations == 2 * products * (8 // tile) ** 2 * 3 * 5


STRIDED_GAINS = {  # outputs of a tile along an axis forward, for data and for filters, or 0
    "n8 ic64 ih56 iw56 oc128 kh3 kw3 sh2 sw2 ph1 pw1": (4, 4, 4),
    "n8 ic256 ih28 iw28 oc256 kh3 kw3 sh2 sw2 ph1 pw1": (2, 2, 2),
    "n8 ic512 ih14 iw14 oc512 kh3 kw3 sh2 sw2 ph1 pw1": (0, 4, 4),  # forward, too many weights for the caches
    "n1 ic512 ih14 iw14 oc512 kh3 kw3 sh2 sw2 ph1 pw1": (2, 2, 2),
    "n8 ic3 ih32 iw32 oc16 kh3 kw3 sh2 sw2 ph1 pw1": (0, 0, 0),
}


@pytest.mark.parametrize("text", STRIDED_GAINS)
def test_strided_where_they_pay(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CLGRAFT_WINOGRAD", raising=False)
    monkeypatch.setattr(winograd_tiles, "worthwhile", WORTHWHILE)
    for direction, tile in zip(DIRECTIONS, STRIDED_GAINS[text]):
        problem = core.parse(f"conv {direction} {text}")
        if tile:
            assert winograd_tiles.choose(problem).tile == tile
        else:
            with pytest.raises(Declined, match="transforms would cost more"):
                winograd_tiles.choose(problem)


@pytest.mark.parametrize(
    "text",
    [
        "backward_data n2 ic8 ih9 iw10 oc6 kh3 kw3 sw2 ph1 pw1",
        "backward_filter n2 ic8 ih9 iw10 oc6 kh5 kw5 sh2 sw2 ph2 pw2",
        "forward n2 ic8 ih9 iw10 oc6 kh5 kw5 sh2 sw2 ph2 pw2",
        "forward n2 ic8 ih9 iw10 oc6 kh3 kw3 sw2 ph1 pw1",
        "forward n2 ic8 ih9 iw10 oc6 kh3 kw3 sh2 sw2 ph2 pw2 dh2 dw2",
        "forward n2 ic8 iw10 oc6 kw3 sw2 pw1",
    ],
)
def test_other_strides_are_left_to_others(text: str) -> None:
    with pytest.raises(Declined, match="serves stride"):
        winograd_tiles.expect_served(core.parse(f"conv {text}"))


def test_dilated_groups_are_left_to_others(context: Context) -> None:
    problem = core.parse("conv n2 g2 ic8 ih9 iw10 oc6 kh3 kw3 ph2 pw2 dh2 dw2").with_direction("forward")
    assert context.choose(problem).algorithm != "winograd"
    check(context, problem, None)


@pytest.mark.parametrize("dilate", [1, 2, 3, 7])
def test_tiles_of_all_phases(dilate: int) -> None:
    for size in range(1, 40):
        phases = (len(range(phase, size, dilate)) for phase in range(dilate))
        assert winograd_tiles.tiles_along(size, 4 * dilate, dilate) == sum(-(-phase // 4) for phase in phases)


def test_dilated_where_they_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CLGRAFT_WINOGRAD", raising=False)
    monkeypatch.setattr(winograd_tiles, "worthwhile", WORTHWHILE)
    gains = {
        "n8 ic256 ih28 iw28 oc256 kh3 kw3 ph2 pw2 dh2 dw2": 4,
        "n1 ic512 ih33 iw33 oc256 kh3 kw3 ph6 pw6 dh6 dw6": 2,
    }
    for text, tile in gains.items():
        assert winograd_tiles.choose(core.parse(f"conv forward {text}")).tile == tile
    with pytest.raises(Declined, match="transforms would cost more"):  # a tile for each of four pixels
        winograd_tiles.choose(core.parse("conv forward n8 ic64 ih14 iw14 oc64 kh3 kw3 ph12 pw12 dh12 dw12"))
