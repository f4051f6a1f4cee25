"""Micro kernels for NVIDIA's matrix units, computed through local memory here: every direction against float64."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from clgraft import core
from clgraft.core.errors import ArgumentError, BuildError, Declined
from clgraft.core.operators.conv.gemm_gpu import builder, wgmma
from clgraft.core.operators.conv.gemm_gpu import product as gpu_gemm_product
from clgraft.core.operators.conv.gemm_gpu import tiles as gpu_gemm_tiles
from clgraft.core.operators.conv.gemm_gpu.gemm import IMPLEMENTATIONS, PORTABLE
from clgraft.core.operators.conv.gemm_gpu.mma import MMA
from clgraft.core.operators.conv.gemm_gpu.product import TileChoice
from clgraft.core.operators.conv.gemm_gpu.stream import STREAM
from clgraft.core.operators.conv.gemm_gpu.tile import ProductShape, Tile
from clgraft.core.operators.conv.gemm_gpu.wgmma import WGMMA
from clgraft.core.planning.precision import precision
from clgraft.core.runtime import probes
from clgraft.core.runtime.toolchains import nvidia
from clgraft.core.session.context import Context
from tests.core.conv_checks import OUTPUTS, an_h200, check, forced_choice, random_arrays, reference

ROWS, TF32_ROWS = (
    tuple(tile for tile in gpu_gemm_tiles.rows(name, 4) if tile.form is not STREAM)
    for name in ("nvidia", "nvidia:tf32")
)
SMALLEST = {form.kernel: min((t for t in ROWS if t.form is form), key=lambda t: t.m * t.n) for form in (MMA, WGMMA)}
PROBLEMS = (
    "conv forward f16 n2 ic8 ih7 iw9 oc21 kh3 kw3 ph1 pw1 b1",
    "conv forward n3 ic64 iw29 oc70 kw3 sw2 pw3 dw2",
    "conv backward_data g2 n1 ic10 id5 ih4 iw6 oc96 kd1 kh2 kw3 pd1 pw1",
    "conv backward_data n2 ic5 ih7 iw8 oc32 kh3 kw3 sh2 sw2 ph1 pw1",
    "conv backward_filter n2 ic5 id3 ih4 iw5 oc7 kd2 kh2 kw2 pd1 ph1 pw1",
    "conv backward_filter f16 g2 n3 ic6 ih8 iw9 oc10 kh3 kw3 sh2 sw2",
)


@pytest.fixture
def forced(monkeypatch: pytest.MonkeyPatch) -> Iterator[list]:
    """A list of a tile and a number of parts, which are then chosen for every product."""
    wanted: list = []

    def choose(product: ProductShape, device: object, size: int, split: bool = True, only: object = None) -> TileChoice:
        tile, parts = wanted
        return forced_choice(product, tile, parts if split else 1)

    monkeypatch.setattr(builder, "choose", choose)
    yield wanted


@pytest.mark.parametrize("micro", SMALLEST)
@pytest.mark.parametrize("text", PROBLEMS)
def test_matches_float64(text: str, micro: str, forced: list) -> None:
    """In one part or in two, overwriting or adding."""
    parts = 1 + PROBLEMS.index(text) // 2 % 2
    forced[:] = SMALLEST[micro], parts
    check(Context.on(None), core.parse(text), "gpu_gemm", accumulate=parts == 2, seed=3)


LARGEST = max((tile for tile in ROWS if tile.form is WGMMA), key=lambda tile: tile.m * tile.n)
ONE_TAP = (
    "conv forward g2 n3 ic64 ih2 iw6 oc140 kh1 kw1 b1",
    "conv forward n1 ic192 iw300 oc70 kw1",
    "conv backward_data n3 ic37 ih4 iw5 oc32 kh1 kw1",
    "conv forward n2 ic32 ih3 iw3 oc40 kh1 kw1",  # planes that are no whole vectors
)


FILTERS = (
    "conv backward_filter g2 n3 ic70 ih2 iw6 oc36 kh1 kw1",  # a step has pixels of several images
    "conv backward_filter n2 ic37 iw100 oc70 kw1",
    "conv backward_filter n5 ic6 id2 ih2 iw1 oc130 kd1 kh1 kw1",
    "conv backward_filter n2 ic32 ih3 iw3 oc40 kh1 kw1",
)


@pytest.mark.parametrize("tile", [ROWS[0], SMALLEST[MMA.kernel], LARGEST], ids=lambda tile: tile.name)
@pytest.mark.parametrize("text", ONE_TAP + FILTERS)
def test_vectors_of_pixels(text: str, tile: Tile, forced: list) -> None:
    """Kernels of one tap, whole and in parts of one, two and more steps."""
    parts = 1 + (ONE_TAP + FILTERS).index(text) % 2
    forced[:] = tile, parts
    check(Context.on(None), core.parse(text), "gpu_gemm", accumulate=parts == 2, seed=5)


@pytest.mark.parametrize("direction", ["forward", "backward_filter"])
def test_vectors_of_pixels_that_are_not_aligned(direction: str, forced: list) -> None:
    forced[:] = LARGEST, 1
    problem = core.parse("conv n2 ic64 ih2 iw6 oc5 kh1 kw1").with_direction(direction)
    plan = Context.on(None).plan(problem, algorithm="gpu_gemm")
    arrays = random_arrays(problem)
    moved = {}
    for name in (argument.name for argument in problem.arguments() if argument.role == "in"):
        array = arrays[name]
        moved[name] = np.empty(array.size + 1, np.float32)[1:].reshape(array.shape)
        moved[name][:] = array
    result = np.full(problem.arguments()[-1].shape, np.nan, np.float32)
    plan.run(**moved, **{OUTPUTS[direction]: result})
    np.testing.assert_allclose(result, reference(problem, arrays), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("text", PROBLEMS[::2][:2])
def test_the_largest_tile(text: str, forced: list) -> None:
    """Weights are packed as tiles lie in local memory, whose number depends on the tile."""
    forced[:] = LARGEST, 2
    check(Context.on(None), core.parse(text), "gpu_gemm", seed=4)


@pytest.mark.parametrize("tile", TF32_ROWS, ids=lambda tile: tile.name)
def test_tf32_rounds_operands_and_says_so(tile: Tile, forced: list) -> None:
    """Products of operands with 11 bits: far more than float32's error, and as much as theirs at most."""
    forced[:] = tile, 1
    context = Context.on(None)
    for text in (
        "conv forward n2 ic32 ih7 iw6 oc32 kh3 kw3 ph1 pw1 b1",
        "conv backward_filter n3 ic20 ih8 iw9 oc33 kh1 kw2 sw2 pw1",
    ):
        problem = core.parse(text)
        arrays = random_arrays(problem)
        plan = context.plan(problem, algorithm="gpu_gemm")
        assert plan.precision == "tf32"
        assert "precision='tf32'" in repr(plan)
        assert context.choose(problem, "gpu_gemm").label == "gpu_gemm tf32"
        exact = reference(problem, arrays)
        bound = reference(problem, {name: np.abs(array) for name, array in arrays.items()})
        result = np.full(exact.shape, np.nan, np.float32)
        given = {argument.name: arrays[argument.name] for argument in plan.arguments if argument.role == "in"}
        plan.run(**given, **{OUTPUTS[problem.direction]: result})
        error = np.abs(result - exact) / bound
        assert error.max() <= 2.0**-10 + problem.terms * 2.0**-23
        assert error.max() > 2.0**-15


@pytest.mark.parametrize("most", [0, 2**13])
def test_sums_of_tf32_leave_the_units_now_and_then(most: int, forced: list, monkeypatch: pytest.MonkeyPatch) -> None:
    """After 16 steps, or at the end of a moderate depth; 20 steps here, of whole numbers that are exact."""
    monkeypatch.setattr(wgmma, "SUMMED_DEPTH", most)
    forced[:] = min((tile for tile in TF32_ROWS if tile.form is WGMMA), key=lambda tile: tile.m), 1
    context, problem = Context.on(None), core.parse("conv forward n1 ic640 iw12 oc9 kw1")
    launch = PORTABLE.plan(problem, context.planner).launches[-1]
    assert ("#define PROMOTE 0" in launch.kernel.source) == bool(most)
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-9, 10, shape).astype(np.float32) for shape in ((1, 640, 12), (9, 640, 1)))
    y = np.full((1, 9, 12), np.nan, np.float32)
    context.plan(problem, algorithm="gpu_gemm").run(x=x, w=w, y=y)
    np.testing.assert_array_equal(y[0], w[..., 0] @ x[0])


@pytest.mark.parametrize("micro", SMALLEST)
@pytest.mark.parametrize("tf32", [False, True])
def test_nan_and_the_largest_numbers(micro: str, tf32: bool, forced: list) -> None:
    forced[:] = replace(SMALLEST[micro], operands="tf32" if tf32 else "float32"), 1
    plan = Context.on(None).plan(core.parse("conv forward n1 ic32 iw6 oc5 kw1"), algorithm="gpu_gemm")
    x, w = np.zeros((1, 32, 6), np.float32), np.zeros((5, 32, 1), np.float32)
    x[0, 3], w[:, 3] = 1, 1
    x[0, 3, 1], x[0, 3, 2] = np.array([0x7FFFFFFF, 0xFFC00000], np.uint32).view(np.float32)
    # TF32's own largest number, and float32's where there are two parts
    largest = np.array(0x7F7FE000, np.uint32).view(np.float32) if tf32 else np.finfo(np.float32).max
    x[0, 3, 4], x[0, 3, 5] = largest, -np.inf
    y = np.zeros((1, 5, 6), np.float32)
    plan.run(x=x, w=w, y=y)
    assert np.isnan(y[0, :, 1:3]).all()
    expected = np.broadcast_to(np.float32([1, largest, -np.inf]), (5, 3))
    np.testing.assert_allclose(y[0, :, 3:], expected, rtol=0 if tf32 else 2.0**-22)


def test_devices_get_what_they_have() -> None:
    device = replace(
        core.context().device,
        device_class="nvidia",
        has_wgmma=False,
        local_memory=48 * 1024,
        max_work_group_size=1024,
    )

    def forms(**values: object) -> set[str]:
        return {tile.form.name for tile in gpu_gemm_tiles.candidates(replace(device, **values), 4)}

    assert forms(**nvidia.units_of(70)) == {"gpu_gemm"}
    assert forms(**nvidia.units_of(80)) == {"gpu_gemm", "gpu_gemm_mma"}
    hopper = {"gpu_gemm", "gpu_gemm_wgmma", "gpu_gemm_stream"}
    assert forms(**nvidia.units_of(90), has_wgmma=True) == hopper
    # three products are not faster than one of the other units there
    assert forms(**nvidia.units_of(90)) == forms(**nvidia.units_of(86)) == {"gpu_gemm"}


def test_a_short_depth_is_left_to_the_portable_micro_kernel() -> None:
    """Its sums are too few to hide how operands are split."""
    assert gpu_gemm_product.choose(ProductShape(128, 50000, 27, 1, 3), an_h200(), 4).tile.form is PORTABLE.form
    assert gpu_gemm_product.choose(ProductShape(128, 50000, 1152, 1, 128), an_h200(), 4).tile.form is WGMMA


FORMS = {
    "conv forward n64 ic64 ih56 iw56 oc256 kh1 kw1": "gpu_gemm_stream",
    "conv forward n64 ic512 ih14 iw14 oc512 kh3 kw3 sh2 sw2 ph1 pw1": "gpu_gemm_wgmma",
    "conv backward_data n64 ic512 ih14 iw14 oc512 kh3 kw3 sh2 sw2 ph1 pw1": "gpu_gemm_wgmma",
    "conv forward n64 ic3 ih224 iw224 oc64 kh3 kw3 ph1 pw1": "gpu_gemm",
}


@pytest.mark.parametrize("text", FORMS)
def test_one_form_takes_a_problem_and_the_others_leave_it(text: str) -> None:
    """The last implementation plans the same, whose name stands for all of them."""
    context, problem = Context.on(None), core.parse(text)
    context.device = an_h200()
    served = {}
    for implementation in IMPLEMENTATIONS:
        try:
            served[implementation.NAME] = implementation.plan(problem, context.planner)
        except Declined:
            assert implementation is not PORTABLE
    assert next(iter(served)) == FORMS[text]
    keys = {name: [launch.kernel.key for launch in launches.launches] for name, launches in served.items()}
    assert len(served) == (1 if FORMS[text] == PORTABLE.NAME else 2)
    assert keys[FORMS[text]] == keys[PORTABLE.NAME]


def test_tiles_of_all_forms_are_settings_of_the_last() -> None:
    """Rows of databases name them by it; each form lists its own."""
    context, problem = Context.on(None), core.parse(next(iter(FORMS)))
    context.device = an_h200()
    listed = {
        each: [settings for settings in each.candidates(problem, context.planner) if settings]
        for each in IMPLEMENTATIONS
    }
    for implementation, found in listed.items():
        for settings in found[:1]:
            for planned in (implementation, PORTABLE):
                launches = planned.plan(problem, context.planner, settings).launches
                assert implementation.form.kernel in [launch.kernel.function_name for launch in launches]
    (stream, *_), (own, *_) = listed[IMPLEMENTATIONS[0]], listed[IMPLEMENTATIONS[1]]
    with pytest.raises(Declined):
        IMPLEMENTATIONS[1].plan(problem, context.planner, stream)
    with pytest.raises(Declined):
        IMPLEMENTATIONS[0].plan(problem, context.planner, own)


# products of dense layers and 1x1 convolutions, and the fastest tile and number of parts on an H200
MEASURED = {
    ProductShape(512, 4096, 4096, 1, vectors=True): ("128x128x32-wgmma", 1),
    ProductShape(256, 4096, 4096, 1, vectors=True): ("128x128x32-wgmma", 2),
    ProductShape(64, 4096, 4096, 1, vectors=True): ("64x128x32-wgmma", 4),
    ProductShape(4096, 4096, 64, 1, 64): ("64x64x32-wgmma", 1),
    ProductShape(4096, 4096, 128, 1, 128): ("128x128x32-wgmma", 1),
    ProductShape(512, 4096, 4096, 1, 4096): ("128x128x32-wgmma", 1),
    ProductShape(256, 64 * 3136, 64, 1, 64): ("64x64x32-wgmma", 1),
    ProductShape(512, 64 * 784, 128, 1, 128): ("128x128x32-wgmma", 1),
    ProductShape(512, 64 * 49, 2048, 1, 2048): ("128x128x32-wgmma", 1),
    ProductShape(64, 256, 64 * 3136, 1, vectors=True): ("64x128x32-wgmma", 66),
}


@pytest.mark.parametrize("product", MEASURED, ids=str)
def test_the_model_chooses_what_was_fastest(product: ProductShape) -> None:
    choice = gpu_gemm_product.choose(product, an_h200(), 4)
    assert (choice.tile.name, choice.parts) == MEASURED[product]


def test_tf32_has_to_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    device = core.context().device
    device = replace(device, device_class="nvidia", **nvidia.units_of(86), has_wgmma=False, local_memory=48 * 1024)
    monkeypatch.delenv("CLGRAFT_PRECISION", raising=False)
    assert not any(tile.precision for tile in gpu_gemm_tiles.candidates(device, 4))
    monkeypatch.setenv("CLGRAFT_PRECISION", "tf32")
    assert {tile.form for tile in gpu_gemm_tiles.candidates(device, 4) if tile.precision} == {MMA}
    assert not any(tile.precision for tile in gpu_gemm_tiles.candidates(replace(device, device_class="amd"), 4))
    assert not any(tile.precision for tile in gpu_gemm_tiles.candidates(device, 8))
    names = [tile.name for tile in gpu_gemm_tiles.candidates(device, 4)]
    assert len(names) == len(set(names))


def test_words_of_the_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    for word, expected in (("", "float32"), ("float32", "float32"), (" TF32 ", "tf32")):
        monkeypatch.setenv("CLGRAFT_PRECISION", word)
        assert precision() == expected
    monkeypatch.setenv("CLGRAFT_PRECISION", "fp8")
    with pytest.raises(ArgumentError, match=r"\[precision\] got CLGRAFT_PRECISION='fp8', expected one of"):
        precision()


def test_hoppers_units_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    context = core.context()
    monkeypatch.setattr(probes, "_known", {})
    monkeypatch.setenv("CLGRAFT_CACHE", "off")
    assert probes.works(context, nvidia.wgmma_probe(context.device))
    monkeypatch.setattr(probes, "_known", {})
    monkeypatch.setattr(nvidia, "DEFINES", {**nvidia.DEFINES, "as_uint(x)": "0u"})
    assert not probes.works(context, nvidia.wgmma_probe(context.device))  # wrong results
    monkeypatch.setattr(nvidia, "DEFINES", {**nvidia.DEFINES, "TILE_M": "("})
    assert not probes.works(context, nvidia.wgmma_probe(context.device))  # it does not build


def test_ptx_gets_its_instructions() -> None:
    text = b".version 8.5\n.target sm_90, debug\n\t//sm_90a: wgmma.fence.sync.aligned;\n\tret;\0"
    assert nvidia.patched(text) == b".version 8.5\n.target sm_90a, debug\n\twgmma.fence.sync.aligned;\n\tret;\0"
    limited = b".target sm_90\n.entry f(\n)\n.reqntid 256, 1, 1\n{\n//sm_90a: ret;\n}"
    wanted = b".target sm_90a\n.entry f(\n)\n.reqntid 256, 1, 1\n.maxnreg 128\n{\nret;\n}"
    assert nvidia.patched(limited, ("-cl-std=CL1.2", "-cl-nv-maxrregcount=128")) == wanted
    for other in (b".version 8.5\n.target sm_80\n", b".target sm_90a\n", b"\x7fELF"):
        with pytest.raises(BuildError, match=r"\[kernel\] got a binary .* expected PTX for sm_90"):
            nvidia.patched(other)
