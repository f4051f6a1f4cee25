"""`clgraft bench`: groups, agreement of both sides, sums, and what it writes."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from clgraft import core
from clgraft.core import parse
from clgraft.core.files import FileError
from clgraft.core.planning.floor import floor
from clgraft.core.tuning import problem_sets, rows
from clgraft.plugins.command_line.bench import (
    core_operators,
    operators,
    peaks,
    peers,
    report,
    threads,
    timing,
)
from clgraft.plugins.command_line.bench.cases import DIRECTIONS, GROUPS, cases, group_of, set_names
from clgraft.plugins.command_line.bench.named import LoneCase, named
from clgraft.plugins.command_line.bench.peer_threads import Threads, Trial
from clgraft.plugins.command_line.bench.results import Measurement, Results, summaries
from clgraft.plugins.command_line.bench.timing import compare
from clgraft.plugins.command_line.main import main

INSTALLED = peers.available()


def row(name, ratio, group="3x3", direction="forward", peer="mxnet"):
    return Measurement("classic", name, "text", group, direction, peer, native=ratio, ours=1.0, flops=1e9, nbytes=1e9)


def results(rows):
    return Results("a device", "clgraft bench", 2, 5e11, 4e10, {"mxnet": "mxnet 1.9.1"}, rows)


def test_every_set_can_be_read_and_has_its_groups():
    assert set(set_names()) == {*problem_sets.names(), "elements"}
    assert {group_of(case.work) for case in cases(set_names())} == set(GROUPS) - {"more"}  # `more` belongs to no set
    found = {case.name: case for case in cases(["classic"])}
    assert found["11x11-s4-3-64-224"].group == found["7x7-s2-3-64-224"].group == "strided"
    assert found["depthwise-s2-96-112"].group == "depthwise"
    assert found["grouped-32-128-28"].group == found["3x3-dilate2-256-28"].group == "other"


def test_cases_count_operations_and_bytes():
    case = next(c for c in cases(["classic"]) if c.name == "1x1-64-256-56")
    pixels = 8 * 56 * 56
    assert case.flops("forward") == 2 * pixels * 64 * 256
    assert case.flops("backward") == 2 * case.flops("forward")
    assert case.nbytes("forward") == 4 * (pixels * 64 + pixels * 256 + 64 * 256)
    relu = next(c for c in cases(["elements"], batch=3) if c.name == "relu-64-56")
    assert relu.nbytes("forward") == 2 * 4 * 3 * 64 * 3136
    assert relu.nbytes("backward") == 3 * 4 * 3 * 64 * 3136


@pytest.mark.parametrize("peer", dict.fromkeys([*INSTALLED, "numpy"]))
def test_both_sides_compute_the_same(peer):
    sets = ["norms", "poolings", "elements"]
    if peer in ("onnxruntime", "openvino"):
        sets.remove("norms")  # they do not train
    if peer == "caffe":
        caffe_nets = pytest.importorskip("clgraft.plugins.caffe.bench_nets")
        if not caffe_nets.computes_statistics():
            sets.remove("norms")
    work = [case for case in cases(sets, batch=1) if not case.name.endswith(("112", "224"))]
    work += [case for case in cases(["classic"], batch=1) if case.name.endswith(("14", "-7", "28"))]
    missing = []
    for case in work:
        try:
            sides = peers.sides(peer, case)
        except peers.NotServed:
            missing.append(case.name)
            continue
        for side in sides.values():
            side.forward()
            if side.backward:
                side.backward()
        ours = sides.pop("clgraft")
        for native in sides.values():
            found = native.results(), ours.results()
            assert [array.shape for array in found[0]] == [array.shape for array in found[1]]
            assert all(np.isfinite(array).all() and array.any() for both in found for array in both), case.name
            assert peers.disagreement(native, ours) < 1e-5, case.name
    assert not missing


def test_a_side_that_computes_something_else_is_not_measured(monkeypatch):
    case = next(c for c in cases(["elements"], batch=1) if c.name == "relu-64-56")
    sides = peers.sides("numpy", case)
    wrong = peers.Side(sides["clgraft"].forward, None, lambda: [1.001 * sides["clgraft"].results()[0]])
    monkeypatch.setattr(peers, "sides", lambda peer, case: {**sides, "clgraft": wrong})
    (only,) = operators.measure(case, "numpy", 0.01)
    assert isinstance(only, operators.Missing) and "differ" in str(only) and only.served


def test_timing_is_interleaved():
    calls = []
    contenders = {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}
    compare(contenders, seconds=0, least=5, settle=0)
    # in turn; of each turn's two calls in a row the first is not timed
    assert "".join(calls) == "ab" + 5 * ("aa" + "bb")


def test_calls_follow_one_another_without_a_pause(monkeypatch):
    clock = iter(np.arange(0, 1000, 0.01))  # each look at the clock takes 10 ms
    monkeypatch.setattr(timing.time, "perf_counter", lambda: float(next(clock)))
    monkeypatch.setattr(timing.time, "sleep", lambda seconds: pytest.fail("a pause"))
    calls = []
    compare({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, seconds=0, least=2, settle=0.03)
    turns = "".join(calls)[2:].replace("ab", "a b").replace("ba", "b a").split()
    assert [turn[0] for turn in turns[:2]] == ["a", "b"] and all(len(turn) >= 4 for turn in turns)  # 3 to warm up


def test_the_faster_layout_of_a_peer_is_taken(monkeypatch):
    case = next(c for c in cases(["elements"], batch=1) if c.name == "relu-64-56")
    side = peers.sides("numpy", case)["native"]
    monkeypatch.setattr(peers, "sides", lambda peer, case: {"one": side, "other": side, "clgraft": side})
    median = {"one": 3.0, "other": 2.0, "clgraft": 1.0}
    monkeypatch.setattr(
        operators, "compare", lambda calls, seconds: {n: timing.Timing(median[n], 0.5, 0.1) for n in calls}
    )
    (only,) = operators.measure(case, "numpy", 0.01)
    assert (only.native, only.ours, only.layout) == (2.0, 1.0, "other")
    assert report.line(only).endswith("other")
    both = [replace(only, peer="mxnet", layout=layout) for layout in ("one", "other")]
    table = report.markdown([results(both)])
    assert "the faster layout of mxnet: one in 1, other in 1." in table


@pytest.mark.parametrize("peer", dict.fromkeys([*INSTALLED, "numpy"]))
def test_problems_in_channels_last(peer):
    """Both sides compute the same from the same arrays, and a peer without the layout says so."""
    texts = {
        "conv": "conv n2 ic5 ih9 iw8 oc16 kh3 kw3 sh2 sw1 ph1 pw1 layout=nhwc",
        "depthwise": "conv g17 n2 ic17 ih5 iw7 oc17 kh3 kw3 ph1 pw1 layout=nhwc",
        "row": "conv n2 ic5 iw9 oc3 kw3 layout=nhwc",
        "pool": "pool max n2 c19 ih9 iw8 kh3 kw3 sh2 sw2 ph1 pw1 layout=nhwc",
    }
    missing = {"torch": {"row"}, "numpy": {"row"}, "mxnet": {"conv", "depthwise", "row"}}
    found = set()
    for name, text in texts.items():
        (case,) = named([text])
        try:
            sides = peers.sides(peer, case)
        except peers.NotServed:
            found.add(name)
            continue
        ours = sides.pop("clgraft")
        assert list(sides) == (["channels last"] if peer == "torch" else ["native"])
        for side in (ours, *sides.values()):
            side.forward()
            if side.backward:
                side.backward()
        for native in sides.values():
            assert all(np.isfinite(array).all() and array.any() for array in ours.results())
            assert [array.shape for array in native.results()] == [array.shape for array in ours.results()]
            assert peers.disagreement(native, ours) < 1e-5
    assert found == missing.get(peer, set(texts))


def test_what_no_peer_serves_is_measured_alone():
    (case,) = named(["conv n2 ic5 iw9 oc3 kw3 layout=nhwc"])
    (said,) = operators.measure(case, "numpy", 0.001)
    assert "the NumPy peer has no" in str(said) and not said.served
    rows = list(operators.alone(case, 0.001))
    assert [(one.peer, one.direction) for one in rows] == [("-", "forward"), ("-", "backward")]
    assert all(one.ours > 0 and one.native == 0 for one in rows)


@pytest.mark.skipif("torch" not in INSTALLED, reason="PyTorch is not installed")
def test_pytorchs_layouts():
    torch_side = pytest.importorskip("clgraft.plugins.torch.bench_operators")
    found = {case.name: torch_side.layouts(case.work) for case in cases(["classic", "norms", "poolings", "elements"])}
    assert found["3x3-64-56"] == found["max-3x3-s2-64-112"] == ["channels first", "channels last"]
    assert all(layouts == ["channels first"] for name, layouts in found.items() if name.startswith("relu"))
    case = next(c for c in cases(["classic"], batch=1) if c.name == "1x1-2048-512-7")
    sides = peers.sides("torch", case)
    assert list(sides) == ["channels first", "channels last", "clgraft"]
    for side in sides.values():
        side.forward()
        side.backward()
    natives = [sides[name].results() for name in found["3x3-64-56"]]
    assert all(np.allclose(one, other, atol=1e-3) for one, other in zip(*natives))


def test_our_side_with_arrays_on_the_device(monkeypatch):
    """The same results as with NumPy's arrays, and nothing moves in a call."""
    here = core.context()
    device = replace(here.device, host_access="staged")
    staged = core.Context(here.cl_context, here.cl_device, here.queue, device=device)
    monkeypatch.setattr(core, "context", lambda *_: staged)
    known = {case.name: case for case in cases(["classic", "norms", "poolings", "elements"], batch=1)}
    for name in ("1x1-2048-512-7", "512-7", "max-3x3-s2-64-55", "tanh-64-56"):
        case = known[name]
        _, arrays = peers.operands(case.work)
        sides = [core_operators.side(case, dict(arrays), on_device=there) for there in (False, True)]
        before = staged.counters()
        for i, side in enumerate(sides):
            side.forward()
            side.backward()
            moved = staged.counters()["bytes_to_device"] - before["bytes_to_device"]
            before = staged.counters()
            assert (moved == 0) == (i == 1)
        assert all(one.tobytes() == other.tobytes() for one, other in zip(*(side.results() for side in sides)))


def test_no_tuned_row_names_what_is_unseen():
    unseen = {str(case.work): case for case in cases(["unseen"])}
    known = {str(case.work) for name in problem_sets.names() if name != "unseen" for case in cases([name])}
    assert not unseen.keys() & known
    lines = [line for path in Path(rows.__file__).parent.glob("*.txt") for line in path.read_text().splitlines()]
    tuned = {parse(line.split(" -> ")[0]) for line in lines if " -> " in line and not line.startswith("#")}
    assert not tuned & {problem for case in unseen.values() for d in DIRECTIONS for problem in case.problems(d)}
    work = [case.work for case in unseen.values()]
    assert {one.batch for one in work} == {1, 2, 32}
    assert {(35, 35), (17, 17), (5, 5), (61, 61)} == {one.in_size for one in work}
    assert {(1, 7), (7, 1)} <= {one.kernel for one in work} and 992 in {one.in_channels for one in work}


def test_every_table_says_where_and_how(capfd):
    run = replace(
        results([row("x", 2.0), row("net", 4.0, group="net")]),
        device="0:0 A runtime / a device",
        processor="A processor",
        modes={"mxnet": "in an executor"},
        peer_threads={
            "mxnet": Threads(2, "all processors", {"default": Trial(1, 2.0), "all processors": Trial(2, 1.0)})
        },
    )
    threads = "2 threads (all processors; slower: default 1)"
    said = f"easured on A processor, 2 cores; A runtime; float32; mxnet: {threads}, in an executor"
    assert report.markdown([run]).count(f"M{said}.") == 2  # operators and nets
    report.print_sums(run, sys.stdout)
    assert f"m{said}\n" in capfd.readouterr().out
    assert all(peers.mode(peer) for peer in INSTALLED)


def test_sums_say_what_the_floor_would_allow():
    """Where the floor of one row of a sum is not known, they say nothing about the sum."""
    rows = [replace(row(name, 2.0), floor=floor) for name, floor in (("x", 0.5), ("y", 0.125))]
    assert report.sums(rows).endswith("worst 2.00x (x); 25% of the floor, 8.00x at the floor")
    assert report.sums([*rows, row("z", 2.0)]).endswith("worst 2.00x (x)")


def test_sums_by_group():
    rows = [row("x", 2.0), row("y", 0.5), row("z", 3.0, direction="backward"), row("net", 4.0, group="net")]
    found = summaries(rows)
    assert list(found) == [("3x3", "backward", "mxnet"), ("3x3", "forward", "mxnet"), ("net", "forward", "mxnet")]
    one = found["3x3", "forward", "mxnet"]
    assert (one.count, one.mean, one.worst, one.worst_name) == (2, pytest.approx(1.0), 0.5, "y")
    table = report.markdown([results(rows)])
    assert "| 3x3 stride 1 convolution | 1.00x / 3.00x (0.50) |" in table
    assert "| net | forward | mxnet | 4000 ms, 1000 ms, 4.00x | - |" in table
    with_regions = replace(rows[-1], regions=0.5)
    table = report.markdown([results([with_regions])])
    assert "| net | forward | mxnet | 4000 ms, 1000 ms, 4.00x | 500 ms, 8.00x |" in table
    assert "with regions   500.000  8.00x" in report.line(with_regions)
    with_frozen = replace(with_regions, frozen=0.25)
    assert "500 ms, 8.00x; frozen 250 ms, 16.00x |" in report.markdown([results([with_frozen])])
    assert report.line(with_frozen).endswith("8.00x  frozen   250.000 16.00x")


def test_peaks_of_this_device_are_possible(monkeypatch):
    monkeypatch.undo()  # of what shortens them
    found = peaks.measure()
    assert 1e9 < found.flops < 1e15
    assert 1e8 < found.bandwidth < 1e14


def test_command_measures_and_writes_everything(tmp_path, capfd):
    pytest.importorskip("matplotlib")
    figures, table, plots = tmp_path / "figures.json", tmp_path / "table.md", tmp_path / "plots"
    words = ["bench", "elements", "--only", "64-56", "--peers", "numpy", "--batch", "1", "--seconds", "0.01"]
    assert main([*words, "--json", str(figures), "--table", str(table), "--plots", str(plots)]) == 0
    printed = capfd.readouterr().out
    assert "peaks:" in printed and "relu-64-56" in printed
    content = json.loads(figures.read_text())
    assert {r["name"] for r in content["rows"]} == {
        f"{f}-64-56" for f in ("relu", "sigmoid", "tanh", "softrelu", "sum")
    }
    assert {r["direction"] for r in content["rows"]} == {"forward"}
    assert "activations and eltwise" in table.read_text()
    assert all((plots / name).read_bytes().startswith(b"\x89PNG") for name in ("roofline.png", "ratios.png"))
    again = tmp_path / "again.md"
    assert main(["bench", "--from", str(figures), str(figures), "--table", str(again)]) == 0
    assert again.read_text().count("| `clgraft bench") == 2
    assert Results.read(figures).to_json() == figures.read_text()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["resnet51"], "got set 'resnet51', expected one of"),
        (["classic", "--peers", "jax"], "got peer 'jax', expected one of"),
        (["--nets", "resnet51", "--peers", "numpy"], "got nets ['resnet51']"),
    ],
)
def test_wrong_words_are_named(words, expected, capfd):
    assert main(["bench", *words]) == 1
    assert expected in capfd.readouterr().err


def test_a_file_of_something_else_is_refused(tmp_path):
    path = tmp_path / "x.json"
    path.write_text('{"rows": [{"a": 1}]}')
    with pytest.raises(FileError, match="expected results"):
        Results.read(path)


def test_directions_are_those_of_a_side():
    assert set(DIRECTIONS) <= set(peers.Side.__dataclass_fields__)


def test_problems_are_named_by_text_and_lines_of_verbose(tmp_path):
    conv = "conv backward_data n2 ic3 ih9 iw11 oc4 kh3 kw3"
    file = tmp_path / "lines.txt"
    file.write_text(f"clgraft,run,direct,{conv},0.412\nclgraft,run,direct,softmax forward n9 c37,0.100\nepoch 1\n")
    found = list(named([str(file), conv, "conv n2 ic3 ih9 iw11 oc4 kh3 kw3 b1"]))
    assert [case.text for case in found] == [conv.replace("backward_data", "forward"), "softmax forward n9 c37"]
    assert [isinstance(case, LoneCase) for case in found] == [False, True]
    assert found[1].nbytes("forward") == 2 * 4 * 9 * 37 and found[1].group == "softmax"


def test_an_operator_that_no_peer_has_is_measured_alone(tmp_path, capfd):
    figures, table = tmp_path / "figures.json", tmp_path / "table.md"
    words = ["bench", "softmax forward n64 c37", "--peers", "numpy", "--seconds", "0.01"]
    assert main([*words, "--json", str(figures), "--table", str(table)]) == 0
    printed = capfd.readouterr().out
    (line,) = [line for line in printed.splitlines() if "softmax forward n64 c37" in line]
    assert " - " in line and "against" not in printed
    (only,) = json.loads(figures.read_text())["rows"]
    assert only["peer"] == "-" and only["native"] == 0 and only["ours"] > 0
    assert "softmax" not in table.read_text().replace(f"`clgraft {' '.join(words[:2])}", "").split("\n", 3)[3]


def test_floors_of_operators_are_printed():
    one = replace(row("x", 1.0), floor=0.1)
    assert report.line(one).endswith("  100.000    10%")
    assert report.line(replace(one, floor=1.2)).endswith(" 1200.000   120%")  # data in the cache
    assert report.line(row("x", 1.0)).endswith(" -      -")
    back = replace(one, direction="backward", floor=0.5)
    rows = [one, replace(one, peer="torch"), replace(one, name="y", floor=0.4), back]
    table = report.markdown([replace(results(rows), peers={"mxnet": "", "torch": ""})])
    assert "| share of the floor | device |" in table
    assert "| 3x3 stride 1 convolution | 20% / 50% (10%) |" in table


def test_floors_of_nets_are_printed():
    net = Measurement("nets", "net", "t", "net", "inference", "mxnet", 4.0, 2.0, regions=1.0, frozen=0.8)
    net = replace(net, floor=0.9, regions_floor=0.7, frozen_floor=0.6, uncounted=3)
    assert net.share == pytest.approx(0.75)
    said = report.line(net)
    assert " 900.000    45%  with regions  1000.000  4.00x, floor 700 ms (70%)  frozen" in said
    assert said.endswith("5.00x, floor 600 ms (75%)  3 operators not counted")
    trained = replace(net, direction="training", frozen=0.0, updated=0.5, updated_floor=0.4, uncounted=0)
    assert report.line(trained).endswith("with its optimizer   500.000  8.00x, floor 400 ms (80%)")
    assert trained.share == pytest.approx(0.8)
    cells = "| 4000 ms, 2000 ms, 2.00x, floor 900 ms (45%) | 1000 ms, 4.00x, floor 700 ms (70%); frozen 800 ms, 5.00x"
    assert cells + ", floor 600 ms (75%) |" in report.markdown([results([net])])


def test_runs_of_single_nets_become_one(tmp_path):
    rows = [Measurement("nets", name, name, "net", "training", "mxnet", 4.0, 2.0) for name in ("a", "b")]
    runs = [replace(results([one]), command=f"clgraft bench --nets {one.name} --directions training") for one in rows]
    both = runs[0].joined(runs[1])
    assert both.rows == rows and both.command == "clgraft bench --nets a,b"
    again = replace(rows[0], ours=1.0)
    assert both.joined(replace(runs[0], rows=[again])).rows == [rows[1], again]
    with pytest.raises(FileError, match="expected"):
        both.joined(replace(runs[0], threads=9))


def test_every_way_of_a_peer_is_printed():
    net = Measurement("nets", "net", "t", "net", "inference", "torch", 3.0, 2.0, layout="compiled", frozen=1.0)
    net = replace(net, ways={"eager": 4.0, "compiled": 3.0})
    assert "  compiled  eager  4000.000  2.00x  frozen  1000.000  3.00x" in report.line(net)
    assert "| 3000 ms (compiled), 2000 ms, 1.50x; eager 4000 ms, 2.00x | frozen 1000 ms, 3.00x |" in report.markdown(
        [results([net])]
    )
    assert "faster layout" not in report.markdown([results([net])])


def test_floors_are_kept(tmp_path, capfd):
    figures = tmp_path / "figures.json"
    text = "conv forward n1 ic16 ih8 iw8 oc32 kh1 kw1"
    assert main(["bench", text, "--peers", "numpy", "--seconds", "0.01", "--json", str(figures)]) == 0
    assert "floor ms" in capfd.readouterr().out
    (kept,) = [one for one in json.loads(figures.read_text())["rows"] if one["direction"] == "forward"]
    found = Results.read(figures)
    here = peaks.Peaks(found.peak_flops, found.peak_bandwidth)
    assert kept["floor"] == pytest.approx(floor(core.context().plan(parse(text)).work, here))
    assert kept["share"] == pytest.approx(kept["floor"] / kept["ours"])
    assert found.to_json() == figures.read_text()


def test_figures_say_their_precision(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("CLGRAFT_PRECISION", "float32")  # what the command changes is put back
    figures, text = tmp_path / "figures.json", "conv forward n1 ic16 ih8 iw8 oc32 kh1 kw1"
    for precision, words in (
        ("bfloat16", "our nets in bfloat16, peers' in the faster of it and float32, operators in float32"),
        ("tf32", "ours in tf32, peers in float32, on a GPU as ours"),
        ("float32", "float32"),
    ):
        given = ["--precision", precision, "--peers", "numpy", "--seconds", "0.01", "--json", str(figures)]
        assert main(["bench", text, *given]) == 0
        assert f"; {words}; " in capfd.readouterr().out
        found = Results.read(figures)
        assert found.precision == precision
        if precision != "float32":
            with pytest.raises(FileError, match=rf"\({words}\)"):
                replace(found, precision="float32").joined(found)


@pytest.mark.parametrize("words", [["--seconds", "soon"], ["--seconds", "0"], ["--batch", "1,x"], ["--peers", ","]])
def test_wrong_numbers_are_said_in_words(words, capfd):
    with pytest.raises(SystemExit):
        main(["bench", *words])
    message = capfd.readouterr().err
    assert "expected" in message and "invalid" not in message


def on_cores(count, seconds, peers_seconds):
    """Results whose rows take so many seconds."""
    rows = [replace(row(name, 1.0), ours=ours, native=peers_seconds) for name, ours in seconds.items()]
    return replace(results(rows), threads=count)


def test_speed_by_number_of_cores():
    runs = [on_cores(4, {"a": 2.0, "b": 1.0, "c": 9.0}, 2.0), on_cores(1, {"a": 4.0, "b": 4.0}, 3.0)]
    assert threads.speeds(runs) == {("3x3", "forward", "mxnet"): {1: (1.0, 1.0), 4: (pytest.approx(8**0.5), 1.5)}}
    assert "Speed against that with 1 core: ours / the peer's." in threads.lines(runs)
    assert "| 3x3 stride 1 convolution | forward | mxnet | 1.00x / 1.00x | 2.83x / 1.50x |" in threads.lines(runs)
    text = report.markdown(runs)
    assert "mxnet: device, 4 cores" in text and "mxnet: device, 1 core |" in text and "2.83x / 1.50x" in text
    assert threads.lines(runs[:1]) == []


def test_cores_are_those_of_this_process():
    assert sorted(threads.cores()) == sorted(os.sched_getaffinity(0))


def test_each_number_of_cores_has_a_process(tmp_path, capfd):
    file = tmp_path / "figures.json"
    words = [
        "bench",
        "dense n8 i16 o16",
        "--peers",
        "numpy",
        "--threads",
        "1",
        "--seconds",
        "0.01",
        "--json",
        str(file),
    ]
    assert main(words) == 0
    assert "1 of " in capfd.readouterr().out
    found = Results.read(tmp_path / "figures-1.json")
    assert found.threads == 1 and found.rows and found.command.startswith("clgraft bench")


@pytest.mark.parametrize(
    "words, expected",
    [(["--threads", "4096"], "got 4096 threads, expected at most"), (["-", "--threads", "1"], "got -")],
)
def test_cores_that_cannot_be_had_are_refused(words, expected, capfd):
    assert main(["bench", *words]) == 1
    assert expected in capfd.readouterr().err
