"""Winograd's convolution for GPUs: every direction against float64, with every tile, in chunks and in parts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from clgraft import core
from clgraft.core.errors import Declined
from clgraft.core.graph import parse_graph
from clgraft.core.graph.reference import evaluate
from clgraft.core.operators.conv.gemm_gpu import tiles as gpu_gemm_tiles
from clgraft.core.operators.conv.gemm_gpu import transformed
from clgraft.core.operators.conv.gemm_gpu.product import TileChoice
from clgraft.core.operators.conv.gemm_gpu.stream import STREAM
from clgraft.core.operators.conv.gemm_gpu.tile import ProductShape
from clgraft.core.operators.conv.winograd_gpu import costs
from clgraft.core.operators.conv.winograd_gpu import winograd as gpu_winograd
from clgraft.core.runtime.toolchains.nvidia import units_of
from clgraft.core.session.context import Context
from tests.core.conv_checks import (
    DIRECTIONS,
    FIVES,
    check,
    expect_little_more_error,
    expect_nan_in_its_tiles,
    expect_near,
    forced_choice,
)
from tests.core.test_epilogues import BOTH, CHANNELS
from tests.core.test_epilogues import check as check_epilogue
from tests.problem_sets import problem_lines


def served(text: str) -> bool:
    """Return whether a problem has 3 x 3 kernels that the method serves; those of 5 x 5 are `FIVES`."""
    problem = core.parse(text)
    return (
        problem.kernel == (3, 3)
        and problem.stride == problem.dilate == (1, 1)
        and problem.batch > 0
        and problem.dtype != "float64"
    )


SPREAD = 1.0  # transforms mix the elements of a tile

LINES = {name: text for name, text in problem_lines("conv").items() if served(text)}


@pytest.fixture(scope="module", autouse=True)
def whether_or_not_worthwhile() -> Iterator[None]:
    """Serve problems of any size."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(costs, "worthwhile", lambda problem, shape, device: True)
        patch.setenv("CLGRAFT_TUNE", "off")
        yield


@pytest.fixture(scope="module", params=[2, 4])
def tile(request: pytest.FixtureRequest) -> Iterator[int]:
    """One size of tiles for all that is planned."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CLGRAFT_WINOGRAD", str(request.param))
        yield request.param


@pytest.fixture(scope="module")
def context(tile: int) -> Context:
    """A context that plans for a GPU of many compute units, and runs on this device."""
    context = Context.on(None)
    context.device = replace(context.device, compute_units=128, device_class="gpu")
    return context


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", LINES)
def test_matches_float64(context: Context, name: str, direction: str) -> None:
    problem = core.parse(LINES[name]).with_direction(direction)
    check(context, problem, "gpu_winograd", spread=SPREAD)
    check(context, problem, "gpu_winograd", spread=SPREAD, accumulate=True, seed=3)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_chunks_of_tiles(context: Context, direction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformed, "MOST_BYTES", 2**14)
    for name in ("3x3-no-pad", "groups-2"):
        problem = core.parse(LINES[name]).with_direction(direction)
        names = [launch.kernel.function_name for launch in gpu_winograd.plan(problem, context).launches]
        assert names.count("conv_gemm") > 1
        fresh = Context.on(None)  # plans are cached
        check(fresh, problem, "gpu_winograd", spread=SPREAD)
        check(fresh, problem, "gpu_winograd", spread=SPREAD, accumulate=True)


def random_problem(seed: int) -> core.ConvProblem:
    rng = np.random.default_rng(seed)
    groups = int(rng.choice([1, 1, 2, 3]))
    begin, end = rng.integers(0, 3, (2, 2))
    return core.ConvProblem(
        direction=str(rng.choice(DIRECTIONS)),
        batch=int(rng.integers(1, 6)),
        in_channels=groups * int(rng.choice([1, 3, 16, 37])),
        out_channels=groups * int(rng.choice([1, 5, 32, 41])),
        groups=groups,
        in_size=tuple(np.maximum(3 - begin - end, 1) + rng.integers(0, 19, 2)),
        kernel=(3, 3),
        pad_begin=tuple(begin),
        pad_end=tuple(end),
        bias=bool(rng.integers(2)),
        dtype=str(rng.choice(["float32", "float32", "float16"])),
    )


@pytest.mark.parametrize("seed", range(20))
def test_random_problems(context: Context, seed: int) -> None:
    check(context, random_problem(seed), "gpu_winograd", spread=SPREAD, accumulate=bool(seed % 2), seed=seed)


TILES = {
    f"{device_class}-{tile.name}": tile
    for device_class in ("nvidia", "amd", "intel-gpu", "mali", "gpu")
    for tile in gpu_gemm_tiles.rows(device_class, 4)
    if tile.form is not STREAM
}


@pytest.mark.parametrize("name", TILES)
def test_every_tile_of_the_products(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every micro kernel, with parts of the depth, and chunks of which the last one is smaller."""
    monkeypatch.setenv("CLGRAFT_WINOGRAD", "on")
    tile = TILES[name]

    def insist(product: ProductShape, device: object, size: int, name: str, parts: int) -> TileChoice:
        return forced_choice(product, tile, parts)

    monkeypatch.setattr(transformed, "insist", insist)
    problem = core.parse("conv forward n2 ic39 ih19 iw13 oc70 kh3 kw3 ph1 pw1 b1")
    for direction, parts in (("forward", 1), ("backward_filter", 2)):
        settings = {"tile": 2, "product": tile.name, "parts": parts, "chunks": 2}
        run_with(core.context(), problem.with_direction(direction), settings)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_settings_of_a_search(direction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLGRAFT_WINOGRAD", "on")
    context = core.context()
    problem = core.parse("conv n2 ic19 ih9 iw13 oc40 kh3 kw3 ph1 pw1").with_direction(direction)
    listed = list(gpu_winograd.candidates(problem, context.planner))
    assert listed[0] == {}
    first = dict(listed[1])
    some = [settings for settings in listed[1:] if settings["product"] == first["product"]]
    filters = direction == "backward_filter"
    assert len(some) == 2 * len(gpu_winograd.CHUNKS) * (len(gpu_winograd.PARTS) if filters else 1)
    for settings in some[:: 5 if filters else 1]:
        run_with(context, problem, dict(settings))


def run_with(context: Context, problem: core.ConvProblem, settings: dict[str, int | str]) -> None:
    """Run a problem with settings and compare it with float64."""
    expect_near(context, problem, gpu_winograd.plan(problem, context.planner, settings), "gpu_winograd", 3e-6)


@pytest.mark.parametrize("mean", [0, 100])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_error_is_at_most_ten_times_the_direct_methods(context: Context, direction: str, mean: float) -> None:
    problem = core.parse("conv n2 ic64 ih14 iw14 oc64 kh3 kw3 ph1 pw1").with_direction(direction)
    expect_little_more_error(context, problem, "gpu_winograd", "gpu_gemm", mean)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_two_runs_give_the_same_bits(context: Context, direction: str) -> None:
    problem = core.parse(LINES["small-planes"]).with_direction(direction)
    first, second = (check(context, problem, "gpu_winograd", spread=SPREAD) for _ in range(2))
    assert first.tobytes() == second.tobytes()


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_nan_stays_in_its_tiles(context: Context, tile: int, direction: str) -> None:
    problem = core.parse("conv n3 ic5 ih12 iw12 oc7 kh3 kw3 ph1 pw1").with_direction(direction)
    expect_nan_in_its_tiles(context, problem, "gpu_winograd", slice(3, 6), 8)


@pytest.mark.parametrize(
    "text",
    [
        "conv f64 n2 ic5 ih9 iw11 oc7 kh3 kw3 ph1 pw1",
        "conv n2 ic4 ih11 iw10 oc5 kh3 kw3 ph2 pw2 dh2 dw2",
        "conv n2 ic4 ih11 iw13 oc6 kh3 kw3 sh2 sw2 ph1 pw1",
        "conv n0 ic3 ih5 iw5 oc4 kh3 kw3 ph1 pw1",
        "conv n2 ic3 ih9 iw8 oc5 kh5 kw3 ph2 pw2",
        "conv n2 ic3 ih19 iw18 oc5 kh7 kw7 ph3 pw3",
        "conv n70000 ic1 ih200 iw200 oc1 kh3 kw3",
    ],
)
def test_declines_what_it_does_not_serve(text: str) -> None:
    for direction in DIRECTIONS:
        with pytest.raises(Declined):
            gpu_winograd.plan(core.parse(text).with_direction(direction), core.context().planner)


@pytest.mark.parametrize(
    "changes",
    [{"tile": 3}, {"product": "7x7x7"}, {"parts": 2}, {"parts": 0}, {"chunks": 0}, {"chunks": 10**6}, {"rows": 1}],
)
def test_settings_that_cannot_be_are_declined(changes: dict[str, int | str]) -> None:
    context = core.context()
    problem = core.parse("conv forward n2 ic19 ih9 iw13 oc70 kh3 kw3")
    product = next(gpu_gemm_tiles.candidates(context.device, 4)).name
    with pytest.raises(Declined):
        gpu_winograd.plan(problem, context.planner, {"tile": 4, "product": product, "parts": 1, "chunks": 1, **changes})


def test_the_switch_forbids_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLGRAFT_WINOGRAD", "off")
    with pytest.raises(Declined, match="CLGRAFT_WINOGRAD is off"):
        gpu_winograd.plan(core.parse("conv forward n2 ic64 ih14 iw14 oc64 kh3 kw3"), core.context().planner)


@pytest.mark.parametrize("storage", ["", "f16 "])
def test_epilogues(context: Context, tile: int, rng: np.random.Generator, storage: str) -> None:
    """Whole rows of tiles, and those that end in the middle."""
    for size in ("ih15 iw13", "ih8 iw16"):
        layer = f"conv forward {storage}n2 ic19 {size} oc37 kh3 kw3 ph1 pw1 b1"
        for epilogue in (BOTH, CHANNELS):
            problem = core.parse(f"fused {layer} {epilogue}")
            launches = gpu_winograd.plan(problem.base, context.planner, epilogue=problem.epilogue)
            check_epilogue(context.plan_launches(problem, launches, "gpu_winograd"), problem, rng)


def test_graphs_choose_it_and_fuse_what_follows(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two layers with activations and a residual sum, forward and backward, as on a GPU."""
    monkeypatch.setenv("CLGRAFT_WINOGRAD", "4")
    context = Context.on(None)
    context.device = replace(
        context.device, compute_units=128, device_class="gpu", is_cpu=False, is_gpu=True, vector_width=1
    )
    graph = parse_graph(
        "input x[2,16,9,11] w[16,16,3,3] b[16] v[16,16,3,3]\n"
        "y = x w b | conv forward n2 ic16 ih9 iw11 oc16 kh3 kw3 ph1 pw1 b1\n"
        "z = y | pointwise x0[3168] : y0 = x0 > 0 ? x0 : 0\n"
        "t = z v | conv forward n2 ic16 ih9 iw11 oc16 kh3 kw3 ph1 pw1\n"
        "u = t x | pointwise x0[3168] x1[3168] : y0 = x0 + x1\noutput u"
    )
    for node in (graph.nodes[0], graph.nodes[2]):
        assert context.choose(node.problem).algorithm == "gpu_winograd"
    compiled = context.compile(graph)
    arrays = {value.name: rng.standard_normal(value.shape).astype(np.float32) for value in graph.inputs}
    exact = evaluate(graph, arrays)["u"]
    found = compiled.run(arrays)["u"]
    assert np.abs(found.ravel() - exact.ravel()).max() <= 1e-5 * np.abs(exact).max()
    assert [name for _, name in compiled.report().algorithms] == ["in_kernel", "in_kernel"]
    differentiated = graph.gradients(["x", "w", "b", "v"])
    arrays["d.u"] = rng.standard_normal(3168).astype(np.float32)
    exact, compiled = evaluate(differentiated, arrays), context.compile(differentiated)
    for name, found in compiled.run(arrays).items():
        assert np.abs(found.ravel() - exact[name].ravel()).max() <= 1e-5 * np.abs(exact[name]).max(), name
    names = [name for problem, name in compiled.report().algorithms if " backward" in problem and "bias" not in problem]
    assert names == ["gpu_winograd"] * 4


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_products_keep_float32_accuracy(direction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles that round operands to TF32 are neither chosen nor searched, nor taken from settings."""
    monkeypatch.setenv("CLGRAFT_PRECISION", "tf32")
    monkeypatch.setenv("CLGRAFT_WINOGRAD", "4")
    context = Context.on(None)
    context.device = replace(
        context.device,
        device_class="nvidia",
        **units_of(90),
        compute_units=132,
        max_work_group_size=1024,
        local_memory=48 * 1024,
    )
    problem = core.parse("conv n64 ic128 ih28 iw28 oc128 kh3 kw3 ph1 pw1").with_direction(direction)
    rounding = [tile.name for tile in gpu_gemm_tiles.candidates(context.device, 4) if tile.precision]
    assert rounding
    shape = costs.Shape.of(problem, 4)
    assert not costs.choose_product(shape, shape.tiles, context.device).tile.precision
    searched = {settings.get("product") for settings in gpu_winograd.candidates(problem, context)}
    assert not searched & set(rounding)
    with pytest.raises(Declined, match="TF32"):
        settings = {"tile": 4, "product": rounding[0], "parts": 1, "chunks": 1}
        gpu_winograd.plan(problem, context, settings)


@pytest.fixture(scope="module")
def context_of_fives() -> dict[str, Context]:
    """Contexts for both tiles that plan for a GPU of many compute units, and run on this device."""
    contexts = {word: Context.on(None) for word in ("2", "4")}
    for context in contexts.values():
        context.device = replace(context.device, compute_units=128, device_class="gpu")
    return contexts


@pytest.fixture
def fives(side: str, context_of_fives: dict[str, Context], monkeypatch: pytest.MonkeyPatch) -> Context:
    """A context for 5 x 5 kernels with tiles of 2 x 2 outputs, or of 4 x 4 and kernels that are cut into 3 x 3."""
    monkeypatch.setenv("CLGRAFT_WINOGRAD", side)
    return context_of_fives[side]


GROUPS = {"groups-2": "conv g2 n2 ic6 ih7 iw8 oc10 kh5 kw5 ph2 pw2 b1"}


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(
    ("side", "name"),
    [
        *(("2", name) for name in (*FIVES, *GROUPS)),
        *(("4", name) for name in ("bias", "pad-above-kernel", "asymmetric-pad", "one-pixel", "f16", *GROUPS)),
    ],
)
def test_five_taps_match_float64(fives: Context, name: str, direction: str) -> None:
    problem = core.parse({**FIVES, **GROUPS}[name]).with_direction(direction)
    check(fives, problem, "gpu_winograd", spread=SPREAD)
    check(fives, problem, "gpu_winograd", spread=SPREAD, accumulate=True, seed=3)


@pytest.mark.parametrize(("side", "mean"), [("2", 0), ("2", 100), ("4", 0)])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_five_taps_err_at_most_ten_times_as_much(fives: Context, direction: str, mean: float) -> None:
    problem = core.parse("conv n4 ic64 ih27 iw27 oc48 kh5 kw5 ph2 pw2").with_direction(direction)
    expect_little_more_error(fives, problem, "gpu_winograd", "gpu_gemm", mean)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_five_taps_where_channels_pay_for_the_transforms(direction: str) -> None:
    """Estimates for an H200."""
    device = replace(
        core.context().device,
        **{"device_class": "nvidia", "compute_units": 132, "max_work_group_size": 1024, **units_of(90)},
        local_memory=48 * 1024,
        has_wgmma=True,
    )
    many = core.parse("conv n64 ic64 ih27 iw27 oc192 kh5 kw5 ph2 pw2").with_direction(direction)
    few = core.parse("conv n64 ic3 ih32 iw32 oc16 kh5 kw5 ph2 pw2").with_direction(direction)
    assert costs.best_cost(many, device) < costs.direct_cost(many, device)
    assert costs.cost(costs.Shape.of(few, 2), device) > costs.direct_cost(few, device)
