"""The floor: what problems and graphs have to compute and to move, counted by hand, and what runs of them add up to."""

from __future__ import annotations

import numpy as np
import pytest

from clgraft import core
from clgraft.core.graph import Graph, parse_graph
from clgraft.core.operators.conv.fft import gpu as fft
from clgraft.core.operators.conv.winograd import tiles, winograd
from clgraft.core.operators.conv.winograd_gpu import winograd as winograd_gpu
from clgraft.core.planning.floor import Peaks, Work, floor

PEAKS = Peaks(flops=1e11, bandwidth=1e10)
ONE = "conv forward n2 ic16 ih8 iw8 oc32 kh1 kw1"
THREE = "conv forward n1 ic32 ih16 iw16 oc32 kh3 kw3 ph1 pw1"
DIRECT = 2 * 32 * 32 * 9 * 256  # operations of THREE
# tiles of 4 x 4 outputs have 6 x 6 elements, those of 2 x 2 outputs 4 x 4: multiply-adds of all channels for each
TILES = {4: 2 * 32 * 32 * 16 * 36, 2: 2 * 32 * 32 * 64 * 16}


def bytes_of(*sizes: int) -> int:
    return 4 * sum(sizes)


@pytest.mark.parametrize(
    ("text", "operations", "nbytes"),
    [
        (ONE, 2 * 2 * 16 * 32 * 64, bytes_of(2 * 16 * 64, 16 * 32, 2 * 32 * 64)),
        # depthwise: one filter for each channel
        ("conv forward n2 g8 ic8 ih9 iw7 oc8 kh3 kw3 ph1 pw1", 2 * 2 * 8 * 63 * 9, bytes_of(2 * 8 * 63 * 2, 8 * 9)),
        ("slice forward x[8,64] y[8,16] at[0,8]", 0, bytes_of(2 * 8 * 16)),
        ("gather shared outer2 extent900 inner5 count7", 0, bytes_of(2 * 2 * 7 * 5, 7)),
    ],
)
def test_operators_by_hand(text, operations, nbytes, context):
    (work,) = context.plan(core.parse(text)).work
    assert work == (operations, nbytes)
    assert floor([work], PEAKS) == max(operations / 1e11, nbytes / 1e10)


def test_batch_norm_moves_every_array_once(context):
    problem = core.parse("batchnorm forward_training n4 c8 s100")
    (work,) = context.plan(problem).work
    assert work.nbytes == bytes_of(2 * 4 * 8 * 100, 4 * 8) and work.operations == problem.operations
    assert floor([work], PEAKS) == work.nbytes / 1e10  # bytes take longer than the operations


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("direction", ["forward", "backward_data", "backward_filter"])
def test_winograds_multiplications_count(tile, direction, context, monkeypatch):
    if not context.device.is_cpu or context.device.vector_width < 8:
        pytest.skip("made for CPUs with vectors of 8 or more")
    monkeypatch.setenv("CLGRAFT_WINOGRAD", str(tile))
    monkeypatch.setattr(tiles, "worthwhile", lambda geometry: True)
    problem = core.parse(THREE).with_direction(direction)
    work = Work.of(problem, winograd.plan(problem, context.planner.dry()))
    assert work.operations == TILES[tile] < DIRECT == problem.operations
    assert work.nbytes == problem.nbytes


def test_winograds_multiplications_on_gpus(context):
    problem = core.parse(THREE)
    settings = next(s for s in winograd_gpu.candidates(problem, context.planner.dry()) if s.get("tile") == 4)
    work = Work.of(problem, winograd_gpu.plan(problem, context.planner.dry(), settings))
    assert work.operations == TILES[4]


def test_complex_products_count(context):
    problem = core.parse("conv forward n3 ic8 ih12 iw12 oc4 kh7 kw7 ph3 pw3")
    found = fft.candidates(problem, context.planner.dry())
    settings = next(s for s in found if s.get("tile") == 32 and s["twin"] == "rows")
    work = Work.of(problem, fft.plan(problem, context.planner.dry(), settings))
    # a tile for each image: 32 x 32 / 2 + 2 points, of which each has a complex multiply-add for 8 x 4 channels
    assert work.operations == 3 * 514 * 32 * 8 < problem.operations


def test_a_method_with_more_operations_saves_nothing(context, monkeypatch):
    monkeypatch.setattr(tiles, "worthwhile", lambda geometry: True)
    problem = core.parse("conv forward n1 ic32 ih1 iw1 oc32 kh3 kw3 ph1 pw1")  # a tile of 36 for 9 taps
    monkeypatch.setenv("CLGRAFT_WINOGRAD", "4")
    if not context.device.is_cpu or context.device.vector_width < 8:
        pytest.skip("made for CPUs with vectors of 8 or more")
    assert Work.of(problem, winograd.plan(problem, context.planner.dry())).operations == problem.operations


def net() -> Graph:
    return parse_graph(
        f"input x[2,16,8,8] w[32,16,1,1] b[32]\nv = x w | {ONE}\n"
        "y = v b | pointwise x0[2,32,64] x1[32,1] : y0 = fmax(x0 + x1, 0);\n"
        "s = y | slice forward x[2,32,8,8] y[1,32,8,8] at[0,0,0,0]\noutput s\n"
    )


def test_a_fused_graph_counts_what_is_left(context):
    """The value between the two operators does not move."""
    report = context.compile(net()).report()
    assert report.fused == 1 and report.nodes == 2
    fused = Work(2 * 2 * 16 * 32 * 64 + 2 * 2 * 32 * 64, bytes_of(2 * 16 * 64, 16 * 32, 32, 2 * 32 * 64))
    assert fused in report.work
    assert floor(report.work, PEAKS) == sum(max(w.operations / 1e11, w.nbytes / 1e10) for w in report.work)
    apart = context.compile(net(), "-all").report()
    assert floor(apart.work, PEAKS) > floor(report.work, PEAKS) and len(apart.work) == 3


def test_a_value_that_fills_two_arguments_moves_once(context):
    graph = parse_graph("input x[2,16]\ny = x x | pointwise x0[2,16] x1[2,16] : y0 = x0 * x1;\noutput y\n")
    (work,) = context.compile(graph).report().work
    assert work == (32, bytes_of(64))


def test_runs_are_counted_wherever_they_come_from(context, rng):
    """A plan of its own twice, a graph once; what ran before does not count."""
    problem = core.parse(ONE)
    plan, compiled = context.plan(problem), context.compile(net())
    arrays = {a.name: np.zeros(a.shape, a.dtype) for a in plan.arguments}
    given = {v.name: rng.standard_normal(v.shape).astype(v.dtype) for v in net().inputs}
    plan.run(**arrays)
    before = plan.runs
    with context.watched() as work:
        for _ in range(2):
            plan.run(**arrays)
        compiled.run(given)
    assert plan.runs == before + 2
    assert sorted(work) == sorted([*plan.work, *plan.work, *compiled.report().work])
    with context.watched() as work, pytest.raises(core.ArgumentError):
        plan.run(**{**arrays, "x": arrays["x"][:1]})
    assert work == []


def test_peaks_that_change_during_a_run_are_told() -> None:
    start = Peaks(2e11, 2e10)
    assert start.change(start) == 0
    assert start.change(Peaks(1e11, 2e10)) == start.change(Peaks(4e11, 1.5e10)) == 1
