"""Products with operands of 16 bits on matrix units, computed through local memory here: all directions and units."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from clgraft import core
from clgraft.core.errors import Declined
from clgraft.core.operators.conv.gemm_gpu import halves
from clgraft.core.operators.conv.gemm_gpu.halves import IMPLEMENTATIONS, Halves
from clgraft.core.operators.conv.gemm_gpu.halves_costs import PhaseChoice, in_sets
from clgraft.core.operators.conv.gemm_gpu.halves_stream import Stream
from clgraft.core.operators.conv.gemm_gpu.halves_tiles import HalvesTile, Product, tiles
from clgraft.core.planning.structs import StructConstant
from clgraft.core.planning.tensor_map import TensorMap
from clgraft.core.problem import SMALL
from clgraft.core.runtime import probes
from clgraft.core.runtime.toolchains.amd import AMD
from clgraft.core.runtime.toolchains.halves import halves_probe, halves_probes
from clgraft.core.runtime.toolchains.intel import DPAS, REGISTERS, Intel
from clgraft.core.runtime.toolchains.nvidia import BOXED, NVIDIA, bulk_probe
from clgraft.core.session.context import Context
from tests.core.conv_checks import SMALLEST, an_h200, check, force_halves
from tests.core.every_run import Check

DPAS_CALL = "intel_sub_group_f16_f16_matrix_mad_k16"
FORMS = {form.units: form for form in IMPLEMENTATIONS}
MMA = FORMS["mma"]
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
    "conv forward f16 g8 n2 ic32 ih5 iw7 oc32 kh3 kw3 ph1 pw1 b1 layout=nhwc": 1,  # groups are merged, here and below
    "conv backward_data bf16 g6 n2 ic24 ih5 iw7 oc48 kh3 kw2 sh2 ph1 layout=nhwc": 1,
    "conv backward_filter f16 g8 n2 ic16 ih6 iw7 oc32 kh3 kw3 ph1 pw1 layout=nhwc": 2,
    "conv forward bf16 g4 n1 ic32 ih5 iw7 oc16 kh3 kw1": 1,
    "conv backward_filter f16 g4 n1 ic16 ih5 iw7 oc32 kh3 kw1": 1,
    # few input channels
    "conv backward_data f16 n2 ic3 ih13 iw11 oc16 kh5 kw5 sh2 sw2 ph2 pw2 layout=nhwc": 1,
    "conv backward_data bf16 n1 ic4 ih10 iw9 oc21 kh3 kw3 sh2 sw1 ph1 pw4 dh2 dw3 layout=nhwc": 1,
    "conv backward_data f16 n2 ic1 iw19 oc16 kw11 sw4 pw2 layout=nhwc": 2,
    "conv backward_data f16 n1 ic3 ih9 iw12 oc16 kh3 kw2": 1,
    "conv backward_filter f16 n2 ic3 ih13 iw11 oc16 kh7 kw5 sh2 sw3 ph2 pw2 dw2 layout=nhwc": 2,
    "conv forward bf16 n2 ic4 id2 ih5 iw9 oc16 kd2 kh1 kw5 sw2 pw3 b1 layout=nhwc": 1,
    "conv backward_filter f16 n6 ic72 ih13 iw14 oc16 kh1 kw1 layout=nhwc": 9,
}


@pytest.fixture
def forced(monkeypatch: pytest.MonkeyPatch) -> list:
    """A list of a tile and a number of parts, which are then chosen for every product, on every device."""
    wanted = force_halves(monkeypatch)
    monkeypatch.setattr(halves, "MOST_PHASES", 0)  # phases of strides one by one
    monkeypatch.setattr(Halves, "runs_on", lambda self, device, dtype: True)
    return wanted


def in_type_of(units: str, text: str) -> core.ConvProblem:
    """Return a problem, in float16 where the units have no other type."""
    return core.parse(text.replace(" bf16 ", " f16 ") if units == "dot2" else text)


@pytest.mark.parametrize("units", FORMS)
@pytest.mark.parametrize("text", PROBLEMS)
def test_matches_float64(text: str, units: str, forced: list) -> None:
    forced[:] = [SMALLEST[units], PROBLEMS[text]]
    check(
        Context.on(None),
        in_type_of(units, text),
        FORMS[units].NAME,
        accumulate="n2" in text,
        rounded_first="layout" not in text,
    )


@pytest.mark.parametrize("units", ["wgmma", "mma"])
@pytest.mark.parametrize("parts", [2, 3])
@pytest.mark.parametrize(
    "text", [text for text, parts in PROBLEMS.items() if parts > 1 or "kh3 kw3 ph1 pw1 b1" in text]
)
def test_joined_parts_match_float64(text: str, parts: int, units: str, forced: list) -> None:
    """The last work-group of a tile adds its parts; twice, so that counters have to be 0 again."""
    forced[:] = [SMALLEST[units], parts, True]
    context, problem = Context.on(None), core.parse(text)
    for _ in range(2):
        check(context, problem, FORMS[units].NAME, accumulate="n2" in text, rounded_first="layout" not in text)


def test_joined_parts_need_one_launch(forced: list) -> None:
    problem = core.parse("conv forward bf16 n3 ic136 ih4 iw5 oc72 kh1 kw1 layout=nhwc")
    context, names = Context.on(None), []
    for joined in ([], [True]):
        forced[:] = [SMALLEST["mma"], 3, *joined]
        plan = MMA.plan(problem, context.planner)
        names.append([launch.kernel.function_name for launch in plan.launches])
    assert names == [["conv_gemm_halves", "conv_sum_halves"], ["conv_gemm_halves"]]


BOXES = {
    "conv forward bf16 n3 ic136 ih4 iw5 oc72 kh1 kw1 b1 layout=nhwc": 2,
    "conv forward f16 n2 ic24 ih7 iw10 oc21 kh1 kw1 layout=nhwc": 1,
    "conv forward f16 n2 ic20 ih5 iw6 oc136 kh1 kw1": 1,
    "conv backward_data f16 n2 ic72 ih7 iw9 oc200 kh1 kw1 layout=nhwc": 3,
    "conv backward_data bf16 n1 ic24 iw70 oc72 kw1 layout=nhwc": 1,
    "conv backward_filter f16 n2 ic72 ih7 iw9 oc200 kh1 kw1 layout=nhwc": 2,
    "conv backward_filter bf16 n3 ic24 iw70 oc20 kw1 layout=nhwc": 3,  # rows of dy and x with zeros after them
    "conv backward_filter f16 n2 ic21 ih3 iw5 oc136 kh1 kw1": 1,
}


@pytest.fixture
def boxed(forced: list, monkeypatch: pytest.MonkeyPatch) -> list:
    """The list of `forced`, on a device whose copy engine brings boxes; other forms are not tried."""
    monkeypatch.setattr(halves._HalvesBuilder, "copies_boxes", lambda self, product, grid: True)
    monkeypatch.setattr(halves._HalvesBuilder, "choose_stream", lambda self, product, grid: None)
    return forced


def boxes_of(problem: core.ConvProblem, context: Context) -> int:
    """Return how many launches copy boxes, which take maps first."""
    launches = FORMS["wgmma"].plan(problem, context.planner).launches
    return sum(isinstance(launch.arguments[0], StructConstant) for launch in launches)


@pytest.mark.parametrize("tile", ["64x64", "64x256", "128x128-1", "parts"])
@pytest.mark.parametrize("text", BOXES)
def test_boxes_match_float64(text: str, tile: str, boxed: list) -> None:
    """Tiles beyond the matrices' ends, one warpgroup and two, parts that one launch adds, and that two do."""
    large = HalvesTile("wgmma", 128, 128, 3, 1, 64, 0, 1, 1.0, 0.0, 0.0, 1.0)
    small = SMALLEST["wgmma"]
    boxed[:] = {
        "64x64": [small, 1],
        "64x256": [replace(large, m=64, n=256, pending=0), 1],
        "128x128-1": [large, 1],
        "parts": [small, BOXES[text], True],
    }[tile]
    context, problem = Context.on(None), core.parse(text)
    assert boxes_of(problem, context) == 1
    check(context, problem, FORMS["wgmma"].NAME, accumulate="n2" in text, rounded_first="layout" not in text)


@pytest.mark.parametrize("offset", [0, 1, 8])
def test_boxes_at_every_address(offset: int, boxed: list) -> None:
    """Maps begin at multiples of 16 bytes; at other addresses work-items copy."""
    boxed[:] = [SMALLEST["wgmma"], 1]
    problem = core.parse("conv forward f16 n1 ic72 ih5 iw16 oc40 kh1 kw1 layout=nhwc")
    rng = np.random.default_rng(0)
    arrays = {
        a.name: np.empty(np.prod(a.shape) + offset, np.float16)[offset:].reshape(a.shape) for a in problem.arguments()
    }
    *inputs, result = arrays
    for name in inputs:
        arrays[name][...] = rng.standard_normal(arrays[name].shape)
    arrays[result][...] = np.nan
    Context.on(None).plan(problem, FORMS["wgmma"].NAME).run(**arrays)
    exact = problem.reference({name: arrays[name] for name in inputs})[result]
    assert np.abs(arrays[result] - exact).max() <= 2**-10 * np.abs(exact).max()


def test_boxes_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    context = core.context()
    monkeypatch.setenv("CLGRAFT_CACHE", "off")
    native = "wgmma" in context.device.matrix_units
    of_all, of_fewer = (
        context.planner.tensor_map(matrix) if native else matrix.as_numbers()
        for matrix in (BOXED, replace(BOXED, rows=BOXED.rows - 1))
    )
    probe = bulk_probe(context.device, of_all)
    wrong = replace(probe, constants=(of_fewer,))
    for tried, expected in ((probe, True), (wrong, False)):
        named = replace(tried, defines={**tried.defines, "TRY": int(expected)})
        assert probes.works(context, named) == expected


@pytest.mark.parametrize(
    ("matrix", "words"),
    [
        (TensorMap(72, 40, 80, 32), (10, 0, 0x47, 0x27, 0x1F, 0x1000)),
        (TensorMap(4096, 512, 4096, 129), (0x200, 0, 0xFFF, 0x1FF, 0x80, 0x4080)),
        (TensorMap(8, 2**20 + 5, 2**35, 64), (0, 1, 7, 0x100004, 0x3F, 0x2000)),
        (TensorMap(2**32 - 1, 2**32, 2**38 + 8, 64), (1, 8, 0xFFFFFFFE, 0xFFFFFFFF, 0x3F, 0x2000)),
    ],
)
def test_maps_are_what_the_driver_encodes(matrix: TensorMap, words: tuple[int, ...]) -> None:
    """These words are what cuTensorMapEncodeTiled of driver 580 writes, with two axes for addresses."""
    pitch, more, columns, rows, box, nbytes = words
    expected = [0, 1, 0x46330, pitch, 1, 2**28, 0, more, columns, rows, 2**28 - 1, 2**20 - 1, 0, 0x3F000000, box, 0]
    value = NVIDIA.tensor_map(SimpleNamespace(), matrix).value
    assert np.frombuffer(value, "<u4").tolist() == [*expected, nbytes, 0, 0x400, *[0] * 13]


def test_boxes_are_for_matrices_in_place() -> None:
    """Of both operands for kernels of one tap, one group and stride 1, and of weights in other backward data."""
    large = replace(an_h200(), has_bulk_copies=True, halves=("wgmma-float16",))
    for text, expected in (
        ("conv forward f16 n512 ic4096 iw1 oc4096 kw1 layout=nhwc", 2),
        ("conv backward_data f16 n512 ic4096 iw1 oc4096 kw1 layout=nhwc", 2),
        ("conv backward_filter f16 n64 ic2048 ih7 iw7 oc512 kh1 kw1 layout=nhwc", 2),
        ("conv backward_filter f16 n64 ic2048 ih7 iw7 oc512 kh1 kw1 sh2 sw2 layout=nhwc", 0),
        ("conv forward f16 n64 ic512 ih7 iw7 oc512 kh3 kw3 ph1 pw1 layout=nhwc", 0),
        ("conv backward_data f16 n64 ic512 ih7 iw7 oc512 kh3 kw3 ph1 pw1 layout=nhwc", 1),
        ("conv forward f16 g2 n512 ic4096 iw1 oc4096 kw1 layout=nhwc", 0),
    ):
        maps: list[TensorMap] = []
        planner = SimpleNamespace(
            device=large,
            kernel=lambda *_: None,
            tensor_map=lambda matrix, maps=maps: maps.append(matrix) or matrix.as_numbers(),
        )
        FORMS["wgmma"].plan(core.parse(text), planner)
        assert len(maps) == expected


@pytest.mark.parametrize("tile", tiles("wgmma"), ids=lambda tile: tile.name)
@pytest.mark.parametrize(
    "text",
    [
        "conv forward f16 n512 ic4096 iw1 oc4096 kw1 layout=nhwc",
        "conv backward_data f16 n64 ic512 ih14 iw14 oc512 kh3 kw3 ph1 pw1 layout=nhwc",
        "conv backward_filter f16 n64 ic512 ih14 iw14 oc512 kh3 kw3 ph1 pw1 layout=nhwc",
    ],
)
def test_registers_have_room_for_sums(text: str, tile: HalvesTile, forced: list) -> None:
    """Whatever is forced, also boxes with their work-items more: products need 26 registers apart from their sums."""
    device = replace(an_h200(), has_bulk_copies=True, halves=("wgmma-float16",), matrix_units=("wgmma",))
    asked: list[tuple[str, tuple[str, ...]]] = []
    planner = SimpleNamespace(
        device=device,
        kernel=lambda file, name, defines, dtype, options=(): asked.append((name, options)),
        tensor_map=lambda matrix: matrix.as_numbers(),
    )
    forced[:] = [tile, 1]
    FORMS["wgmma"].plan(core.parse(text), planner)
    ((limit,),) = (options for name, options in asked if name == "conv_gemm_halves")
    option, registers = limit.split("=")
    assert option == "-cl-nv-maxrregcount"
    assert tile.sums + 26 <= int(registers) < 256
    if "backward_filter" in text:  # without boxes, as many work-groups share a unit as the tile wants
        assert int(registers) * tile.threads * tile.busy <= device.registers


STREAMS = (
    "conv forward f16 n3 ic24 ih7 iw9 oc72 kh1 kw1 b1 layout=nhwc",
    "conv forward bf16 g2 n2 ic272 ih9 iw13 oc48 kh1 kw1 layout=nhwc",
    "conv forward f16 n5 ic64 iw70 oc136 kw1 b1",
    "conv backward_data f16 n2 ic40 ih12 iw13 oc72 kh1 kw1 layout=nhwc",
    "conv backward_data bf16 g2 n2 ic144 ih9 iw13 oc48 kh1 kw1 layout=nhwc",
    "conv backward_data f16 n3 ic64 ih16 iw8 oc192 kh1 kw1 layout=nhwc",  # rounded first, here and below
    "conv forward bf16 g2 n3 ic144 ih9 iw7 oc208 kh1 kw1 layout=nhwc",
    "conv forward f16 n1 ic16 ih3 iw3 oc21 kh1 kw1 layout=nhwc",
    "conv forward f16 n2 ic24 ih9 iw13 oc40 kh3 kw3 sh2 sw2 ph1 pw1 layout=nhwc",  # taps, here and below
    "conv forward bf16 g2 n2 ic32 ih7 iw9 oc48 kh3 kw2 sw2 ph1 qw1 dh2 b1 layout=nhwc",
    "conv forward f16 n3 ic3 ih13 iw11 oc16 kh5 kw5 sh2 sw2 ph2 pw2 layout=nhwc",
    "conv forward bf16 n2 ic80 id3 ih5 iw6 oc72 kd2 kh2 kw3 sd2 pd1 pw1 layout=nhwc",
    "conv forward f16 n2 ic24 ih9 iw7 oc24 kh1 kw1 sh2 sw2 layout=nhwc",
)


@pytest.mark.parametrize("units", FORMS)
@pytest.mark.parametrize("text", STREAMS)
def test_streams_match_float64(text: str, units: str, forced: list, monkeypatch: pytest.MonkeyPatch) -> None:
    """With fewer work-groups than tiles of rows, and one step or more whose copies are on their way."""
    forced[:] = [SMALLEST[units], 1]  # by which numbers of groups are compared
    for walkers, stages in ((1, 2), (2, 4), (100, 3)):
        monkeypatch.setattr(
            halves._HalvesBuilder,
            "choose_stream",
            lambda self, product, grid, walkers=walkers, stages=stages: Stream(
                SMALLEST[units], stages, product.steps, walkers, 1, not self.problem.bias
            ),
        )
        context, problem = Context.on(None), in_type_of(units, text)
        check(context, problem, FORMS[units].NAME, accumulate="n2" in text, rounded_first="layout" not in text)
    plan = FORMS[units].plan(replace(problem, layout="nhwc"), context.planner)
    assert [launch.kernel.function_name for launch in plan.launches][-1] == "conv_stream_halves"


PHASES = (
    "conv backward_data f16 n2 ic16 ih7 iw8 oc40 kh3 kw3 sh2 sw2 ph1 pw1 layout=nhwc",
    "conv backward_data bf16 g2 n1 ic32 id3 ih6 iw9 oc144 kd2 kh3 kw5 sd2 sw3 pw2 dh2 dw2 layout=nhwc",
    "conv backward_data f16 n2 ic72 ih9 iw6 oc24 kh1 kw1 sh2 sw2 layout=nhwc",
    "conv backward_data f16 n2 ic24 ih5 iw1 oc16 kh3 kw1 sh3 sw2 ph2",
    "conv backward_data bf16 n2 ic16 ih9 iw13 oc24 kh2 kw3 sh2 sw2 pw1 layout=nhwc",  # rows end in another tile
    "conv backward_data f16 n2 ic72 ih9 iw10 oc128 kh3 kw3 sh2 sw2 ph1 pw1 layout=nhwc",  # steps of one tap
    "conv backward_data bf16 n2 ic136 ih7 iw7 oc64 kh1 kw2 sh2 sw2 ph1 layout=nhwc",
    "conv backward_data f16 n1 ic16 ih10 iw8 oc64 kh3 kw3 sh3 sw2 layout=nhwc",
)


def phases_together(monkeypatch: pytest.MonkeyPatch, tile: HalvesTile, of_set: int) -> None:
    """Let all phases of a stride run in one launch, with a tile, in sets of so many."""

    def choose_phases(phases: list[Product], candidates: list[HalvesTile], units: int) -> PhaseChoice:
        count = min(of_set, len(phases))
        return PhaseChoice(tile, in_sets([phase.steps for phase in phases], count), count)

    monkeypatch.setattr(halves, "MOST_PHASES", 12)
    monkeypatch.setattr(halves, "choose_phases", choose_phases)


@pytest.mark.parametrize("of_set", [1, 2, 12])
@pytest.mark.parametrize("text", PHASES)
def test_phases_together_match_float64(text: str, of_set: int, forced: list, monkeypatch: pytest.MonkeyPatch) -> None:
    units = "wgmma" if "bf16" in text else "mma"
    forced[:] = [SMALLEST[units], 1]  # by which numbers of groups are compared
    phases_together(monkeypatch, SMALLEST[units], of_set)
    problem = core.parse(text)
    context = Context.on(None)
    check(context, problem, FORMS[units].NAME, accumulate="n2" in text, rounded_first="layout" not in text)
    last = FORMS[units].plan(replace(problem, layout="nhwc"), context.planner)
    assert len(last.launches) == 1


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "tile",
    [pytest.param(tile, id=f"{units}-{tile.name}") for units in FORMS for tile in tiles(units) if tile.n % 64 == 0],
)
def test_every_tile_of_phases_matches_float64(tile: HalvesTile, forced: list, monkeypatch: pytest.MonkeyPatch) -> None:
    phases_together(monkeypatch, tile, 3)
    text = "conv backward_data f16 n2 ic136 ih11 iw14 oc64 kh3 kw3 sh2 sw2 ph1 pw1 layout=nhwc"
    check(Context.on(None), core.parse(text), FORMS[tile.units].NAME, accumulate=True)


def test_sets_of_phases() -> None:
    """Sets have about as many steps, and their first phases are the longest ones."""
    assert in_sets([1, 2, 4, 2], 1) == (2, 1, 3, 0)
    assert in_sets([1, 2, 4, 2], 2) == (2, 0, 1, 3)
    assert in_sets([1, 2, 4, 2], 3) == (2, 3, 0, 1)
    assert in_sets([1, 2, 4, 2], 4) == (2, 1, 3, 0)
    phases = [Product(64 * 784, 128, depth, 1) for depth in (128, 256, 256, 512)]
    device = replace(an_h200(), halves=("wgmma-float16",))
    choice = halves.choose_phases(phases, halves.fitting("wgmma", device), 132)
    assert sorted(choice.order) == [0, 1, 2, 3]


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
    for of_set, windows in ((0, None), (1, None), (4, None), (0, (SMALLEST["mma"], 3, 1))):
        phases_together(monkeypatch, SMALLEST["mma"], of_set)
        if not of_set:
            monkeypatch.setattr(halves, "MOST_PHASES", 0)
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
    forced[:] = [SMALLEST[units], 1]  # by which numbers of groups are compared
    chosen = replace(SMALLEST[units], pending=int(units == "wgmma" and WINDOWS[text] > 3)), WINDOWS[text], 1
    monkeypatch.setattr(halves._HalvesBuilder, "choose_windows", lambda *sizes: chosen)
    check(Context.on(None), in_type_of(units, text), FORMS[units].NAME, accumulate="n2" in text)


BOXED_WINDOWS = {  # and the number of launches that copy boxes
    "conv forward f16 n2 ic128 ih7 iw9 oc21 kh3 kw3 ph1 pw1 b1 layout=nhwc": 1,
    "conv forward bf16 n1 ic192 iw70 oc136 kw4 pw2 layout=nhwc": 1,
    "conv forward f16 n1 ic64 ih6 iw5 oc72 kh2 kw3 dh2 layout=nhwc": 1,
    "conv backward_data f16 n2 ic136 ih7 iw8 oc64 kh3 kw3 ph1 pw1 layout=nhwc": 1,
    "conv backward_data bf16 n2 ic24 ih9 iw8 oc192 kh5 kw3 layout=nhwc": 1,
    "conv forward bf16 g2 n2 ic128 ih6 iw5 oc48 kh3 kw2 ph2 qh0 layout=nhwc": 0,  # groups
    "conv forward f16 n2 ic72 ih6 iw5 oc48 kh3 kw3 layout=nhwc": 0,  # steps that have a part of 64 channels
}


BOXED_WEIGHTS = {  # and the parts of the depth
    "conv backward_data f16 n2 ic136 ih7 iw8 oc64 kh3 kw3 ph1 pw1 layout=nhwc": 3,
    "conv backward_data bf16 n2 ic24 ih9 iw8 oc192 kh5 kw3 sh2 layout=nhwc": 1,
    "conv backward_data f16 n1 ic72 iw70 oc128 kw3 dw2 layout=nhwc": 2,
    "conv backward_data bf16 n1 ic80 id3 ih4 iw5 oc64 kd2 kh3 kw2 pd1 layout=nhwc": 2,
}


@pytest.fixture
def boxed_weights(forced: list, monkeypatch: pytest.MonkeyPatch) -> tuple[Context, HalvesTile]:
    """A context whose device's copy engine brings boxes, and a tile that takes them for weights, which is forced."""
    context, tile = Context.on(None), replace(SMALLEST["wgmma"], slower_weights=1.0)
    context.device = replace(context.device, has_bulk_copies=True)
    monkeypatch.setattr(halves, "MOST_PHASES", 0)  # phases of strides one by one
    forced[:] = [tile, 1]
    return context, tile


@pytest.mark.parametrize("tile", ["64x64", "128x128-1", "joined"])
@pytest.mark.parametrize("text", BOXED_WEIGHTS)
def test_boxes_of_weights_match_float64(
    text: str, tile: str, boxed_weights: tuple[Context, HalvesTile], forced: list
) -> None:
    context, small = boxed_weights
    large = replace(small, m=128, n=128, pending=1)
    problem, parts = core.parse(text), BOXED_WEIGHTS[text]
    forced[:] = {"64x64": [small, parts], "128x128-1": [large, 1], "joined": [small, parts, True]}[tile]
    assert boxes_of(problem, context) >= 1
    check(context, problem, FORMS["wgmma"].NAME, accumulate="n2" in text)


@pytest.mark.parametrize(
    "text",
    [
        "conv backward_data bf16 g2 n2 ic128 ih6 iw5 oc128 kh3 kw2 layout=nhwc",
        "conv backward_data f16 n2 ic72 ih6 iw5 oc72 kh3 kw3 layout=nhwc",  # a step has two taps
        "conv forward f16 n2 ic64 ih6 iw5 oc64 kh3 kw3 layout=nhwc",
        "conv backward_filter f16 n2 ic64 ih6 iw5 oc64 kh3 kw3 layout=nhwc",
    ],
)
def test_boxes_of_weights_are_for_whole_steps(text: str, boxed_weights: tuple[Context, HalvesTile]) -> None:
    assert boxes_of(core.parse(text), boxed_weights[0]) == 0


@pytest.mark.parametrize("name", ["dy", "w"])
def test_boxes_of_weights_at_every_address(name: str, boxed_weights: tuple[Context, HalvesTile]) -> None:
    """Where gradients or weights do not begin at multiples of 16 bytes, work-items copy both."""
    problem = core.parse("conv backward_data f16 n1 ic24 ih5 iw6 oc128 kh3 kw3 ph1 pw1 layout=nhwc")
    rng = np.random.default_rng(0)
    arrays = {}
    for argument in problem.arguments():
        whole = np.full(argument.size + 16, np.nan, np.float16)
        first = -whole.ctypes.data // 2 % 8 + (argument.name == name)
        arrays[argument.name] = whole[first:][: argument.size].reshape(argument.shape)
        if argument.role == "in":
            arrays[argument.name][...] = rng.standard_normal(argument.shape)
    boxed_weights[0].plan(problem, FORMS["wgmma"].NAME).run(**arrays)
    exact = problem.reference({key: arrays[key] for key in ("dy", "w")})["dx"]
    assert np.abs(arrays["dx"] - exact).max() <= 2**-10 * np.abs(exact).max()


EVERY_TILE = core.parse("conv f16 n2 ic136 ih11 iw13 oc200 kh3 kw3 ph1 pw1 layout=nhwc")


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("direction", "tile"),
    [
        pytest.param(direction, tile, id=f"{direction}-{tile.units}-{tile.name}")
        for direction in ("forward", "backward_data", "backward_filter")
        for units in FORMS
        for tile in tiles(units)
        if tile.slower and halves.serves(tile, EVERY_TILE.with_direction(direction))
    ],
)
def test_every_tile_matches_float64(direction: str, tile: HalvesTile, forced: list) -> None:
    forced[:] = [tile, 1]
    check(Context.on(None), EVERY_TILE.with_direction(direction), FORMS[tile.units].NAME)


@pytest.mark.parametrize(
    "text",
    [
        "conv forward f16 n1 ic16 ih5 iw6 oc24 kh3 kw3 ph1 pw1 layout=nhwc",
        "conv backward_data f16 n1 ic16 ih7 iw6 oc24 kh3 kw3 sh2 sw2 ph1 pw1 layout=nhwc",
        "conv backward_data f16 n1 ic16 ih7 iw6 oc64 kh3 kw3 sh2 sw2 ph1 pw1 layout=nhwc",
    ],
)
def test_addresses_that_are_no_multiples_of_a_vector(text: str, forced: list, monkeypatch: pytest.MonkeyPatch) -> None:
    forced[:] = [SMALLEST["mma"], 1]
    phases_together(monkeypatch, SMALLEST["mma"], 2)
    problem = core.parse(text)
    rng = np.random.default_rng(0)
    arrays = {a.name: np.empty(np.prod(a.shape) + 1, np.float16)[1:].reshape(a.shape) for a in problem.arguments()}
    *inputs, result = arrays
    for name in inputs:
        arrays[name][...] = rng.standard_normal(arrays[name].shape)
    arrays[result][...] = np.nan
    Context.on(None).plan(problem, MMA.NAME).run(**arrays)
    exact = problem.reference({name: arrays[name] for name in inputs})[result]
    assert np.abs(arrays[result] - exact).max() <= 2**-10 * np.abs(exact).max()


@pytest.mark.parametrize("units", FORMS)
def test_units_are_checked(units: str, monkeypatch: pytest.MonkeyPatch) -> None:
    context = core.context()
    monkeypatch.setenv("CLGRAFT_CACHE", "off")
    probe = halves_probe(context.device, units)
    wrong = replace(probe, expected=probe.expected + 1)
    broken = replace(probe, defines={**probe.defines, "TILE_N": "("})
    tried = [(probe, True), (wrong, False), (broken, False)]
    if units == "mfma":  # the first generation multiplies bfloat16 by parts of its own
        brain = halves_probe(context.device, units, "bfloat16")
        tried.append((replace(brain, defines={**brain.defines, "__gfx908__": 1}), True))
    for one, works in tried:
        monkeypatch.setattr(probes, "_known", {})
        assert probes.works(context, one) is works


OPENCL_OF_AMD = """
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
size_t __attribute__((overloadable)) get_local_id(uint axis) { return __builtin_amdgcn_workitem_id_x(); }
void __attribute__((overloadable)) barrier(uint fence) { __builtin_amdgcn_s_barrier(); }
"""


@pytest.mark.parametrize(
    ("units", "device", "instruction"),
    [
        ("wmma", "gfx1100", "v_wmma_f32_16x16x16_"),
        ("mfma", "gfx908", "v_mfma_f32_"),
        ("mfma", "gfx90a", "v_mfma_f32_"),
        ("dot2", "gfx1030", "v_dot2"),
    ],
)
def test_kernels_compile_for_their_devices(units: str, device: str, instruction: str, tmp_path: Path) -> None:
    """With clang, whose builtin functions they call: it knows the device's features and the functions' arguments."""
    source, target = tmp_path / "kernel.cl", ("-target", "amdgcn-amd-amdhsa", f"-mcpu={device}", "-nogpulib")
    source.write_text("kernel void f(global float *a) {}")
    options = ("-x", "cl", "-cl-std=CL1.2", "-O1", "-S", *target, "-o", str(tmp_path / "kernel.s"), str(source))
    found = filter(None, map(shutil.which, ("clang", *(f"clang-{version}" for version in range(22, 13, -1)))))
    clang = next((one for one in found if subprocess.run([one, *options], capture_output=True).returncode == 0), None)
    if clang is None:
        pytest.skip(f"needs a clang that compiles for {device}")
    context = Context.on(None)
    context.toolchain = AMD(context.cl_device)
    tried = list(halves_probes(replace(context.device, matrix_units=(units,)), units))
    assert [probe.dtype for probe in tried] == (["float16"] if units == "dot2" else ["float16", "bfloat16"])
    for probe in tried:
        assert probe.defines["EMULATED"] == 0
        kernel = context.kernel(probe.file, probe.kernel, probe.defines, probe.dtype)
        source.write_text(OPENCL_OF_AMD + kernel.source)
        done = subprocess.run([clang, *options], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]
        assert instruction in (tmp_path / "kernel.s").read_text()


def test_units_of_devices() -> None:
    """What is tried, and that a kind which makes another one unnecessary is the first."""
    device = replace(core.context().device, halves=(), matrix_units=("dpas8", "dpas16"))
    tried = list(halves_probes(device, "dpas8", "dpas16"))
    assert [probe.adds for probe in tried] == [
        *(("dpas8-float16",), ("dpas8-bfloat16",), ("dpas16-float16",), ("dpas16-bfloat16",))
    ]
    assert len({probe.what for probe in tried}) == 4
    small, large = (tried[0].noted(device, works) for works in (True, False))
    assert [probe.is_needless(small) for probe in tried] == [False, False, True, True]
    assert [probe.is_needless(large) for probe in tried] == [False, True, False, True]
    assert (small.halves, small.channels_last, large.channels_last) == (("dpas8-float16",), ("float16",), ())
    for name, units in {
        **{"gfx1100": ("wmma",), "gfx1151": ("wmma",), "gfx1201": (), "gfx90a:sramecc+:xnack-": ("mfma",)},
        **{"gfx942": ("mfma",), "gfx1030": ("dot2",), "gfx1010": (), "gfx900": ()},
    }.items():
        toolchain = AMD(a_gpu(name))
        assert toolchain.capabilities()["matrix_units"] == units, name
        words = [word for probe in toolchain.probes(replace(device, matrix_units=units)) for word in probe.adds]
        assert words == [f"{one}-{dtype}" for one in units for dtype in SMALL[: 1 if one == "dot2" else 2]]
    for extensions, units in {"cl_khr_fp16": (), f"cl_khr_fp16 {DPAS}": ("dpas8", "dpas16")}.items():
        toolchain = Intel(a_gpu("Arc", extensions))
        assert toolchain.capabilities()["matrix_units"] == units
        tried = list(toolchain.probes(replace(device, matrix_units=units)))
        assert len(tried) == 2 * len(units)
        for probe in tried:
            text, options = toolchain.kernel_text(probe.file, probe.kernel, {**probe.defines, "STORAGE": 16})
            assert (REGISTERS in options, DPAS_CALL in text) == (True, True)


def a_gpu(name: str, extensions: str = "") -> SimpleNamespace:
    """Return what toolchains ask of an OpenCL device, for a GPU."""
    platform = SimpleNamespace(name="a platform", vendor="a vendor")
    numbers = dict.fromkeys(("native_vector_width_float", "svm_capabilities", "single_fp_config"), 0)
    return SimpleNamespace(
        **numbers, name=name, extensions=extensions, platform=platform, vendor="", type=4, host_unified_memory=False
    )


def test_what_is_declined(monkeypatch: pytest.MonkeyPatch) -> None:
    context = Context.on(None)
    monkeypatch.setattr(Halves, "runs_on", lambda self, device, dtype: device is None)
    for text, reason in {
        "conv forward n1 ic16 ih5 iw6 oc24 kh3 kw3 layout=nhwc": "is for 16 bits",
        "conv forward f16 n1 ic16 ih5 iw6 oc24 kh3 kw3": "needs matrix units with mma",
        "conv backward_bias f16 n1 ic16 ih5 iw6 oc24 kh3 kw3 layout=nhwc": "has no backward_bias",
    }.items():
        with pytest.raises(Declined, match=reason):
            MMA.plan(core.parse(text), context.planner)
    monkeypatch.setattr(Halves, "runs_on", lambda self, device, dtype: True)
    for text in ("g32 ic32 ih5 iw6 oc32", "g3 ic12 ih5 iw6 oc12"):
        with pytest.raises(Declined, match="groups, or several together, have multiples of 8 channels, 16 or more"):
            MMA.plan(core.parse(f"conv forward f16 n1 {text} kh3 kw3"), context.planner)


def test_the_smallest_estimate_is_chosen() -> None:
    """A tile for every unit: more parts where the depth is long and there are few tiles."""
    device = replace(an_h200(), halves=("wgmma-float16", "mma-float16"))
    candidates = halves.fitting("wgmma", device)
    assert len(candidates) == len(tiles("wgmma"))
    assert halves.choose(Product(64 * 3136, 64, 576, 1), candidates, 132).parts == 1
    assert halves.choose(Product(64, 576, 64 * 3136, 1), candidates, 132, walks=True).parts > 16
    assert halves.choose(Product(512, 4096, 4096, 1), candidates, 132).tile.name == "128x128x6-1"
    few = halves.choose(Product(64, 4096, 4096, 1), candidates, 132)
    assert (few.tile.n, few.parts, few.joined) == (64, 2, True)
    assert halves.choose(Product(256, 2304, 6272, 1), candidates, 132, walks=True).parts > 1
    # as measured with boxes in backward filter: many steps gain, operands from memory and few steps do not
    for sizes, boxed in {
        (512, 2048, 3136): "128x64x8-0",
        (1024, 256, 12544): "128x128x6-0",
        (128, 512, 50176): "",
        (256, 64, 200704): "",
        (4096, 4096, 512): "",
    }.items():
        choice = halves.choose(Product(*sizes, 1, by_depth=True), candidates, 132, bulk=True)
        assert (choice.tile.name if choice.bulk else "") == boxed
    data = core.parse("conv backward_data f16 n64 ic64 ih1 iw1 oc64 kh1 kw1")
    assert [tile.n for tile in candidates if not halves.serves(tile, data)] == [32]


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
    context = Context.on(None)
    context.device = replace(context.device, halves=("mma-float16", "mma-bfloat16"))
    plan = context.plan(wanted.problem, "channels_last_gpu")
    wanted.expect_right(plan, wanted.run(plan))


def test_weight_gradients_of_few_rows_are_outer_products() -> None:
    """Memory bounds these: tiles would only add to the stores."""
    context = Context.on(None)
    context.device = replace(context.device, is_cpu=False, is_gpu=True, halves=("mma-float16",))
    found = [context.foreseen(core.parse(f"dense backward_weight f16 n{batch} i256 o64")) for batch in (8, 9)]
    assert found == ["outer_gpu", "channels_last_gpu"]


@pytest.mark.parametrize(
    ("text", "algorithm"),
    [
        ("dense forward f16 n4 i4 o4", "through_convolution"),  # too few channels
        ("dense forward f16 n9 i64 o32", "through_convolution"),
        ("conv forward f16 n2 ic32 ih5 iw6 oc64 kh1 kw1 layout=nhwc", "dense"),
    ],
)
def test_layers_that_no_tile_suits(text: str, algorithm: str) -> None:
    """Dense layers are convolutions on matrix units, and other convolutions dense layers, but not in turn for ever."""
    context, case = Context.on(None), Check(core.parse(text))
    context.device = replace(context.device, is_cpu=False, is_gpu=True, halves=("wgmma-float16",))
    plan = context.plan(case.problem)
    assert plan.algorithm == algorithm
    case.expect_right(plan, case.run(plan))
