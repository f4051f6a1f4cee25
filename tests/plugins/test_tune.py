"""``clgraft tune`` as a user meets it: what can be named, exit status, resumption, candidates that hang or crash."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from clgraft import core
from clgraft.caffe_layers.swap import swap_net
from clgraft.core.tuning import Choice, database, rows
from clgraft.core.tuning.identity import device_class, device_key
from clgraft.plugins import registry
from clgraft.plugins.command_line.main import main
from clgraft.plugins.command_line.tune import budget, supervise, wanted
from clgraft.plugins.command_line.tune.report import Report
from clgraft.plugins.command_line.tune.supervise import TuneError
from clgraft.plugins.plugin import with_regions
from tests.folders import ROOT

TESTS = Path(__file__).resolve().parent.parent
NETS = TESTS / "caffe_layers" / "nets"
PROBLEM = "conv forward n2 ic3 ih9 iw11 oc4 kh3 kw3 ph1 pw1"
OTHER = "conv forward n2 ic3 ih10 iw11 oc4 kh3 kw3 ph1 pw1"
PLANTS = """
import sys
sys.path.insert(0, {root!r})
from tests.core import tuning_plants as plants
from clgraft.core import ConvProblem
from clgraft.core.planning.implementation import register
register(ConvProblem, {implementations})
"""


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache folder of this test's own."""
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("CLGRAFT_CACHE", str(folder))
    monkeypatch.delenv("CLGRAFT_TUNE", raising=False)
    return folder


@pytest.fixture
def plant(tmp_path, monkeypatch):
    """Let the processes that this test starts have other implementations of convolution."""

    usual = os.environ.get("PYTHONPATH", "")

    def planted(implementations: str) -> None:
        folder = tmp_path / "site"
        folder.mkdir(exist_ok=True)
        text = PLANTS.format(root=str(ROOT), implementations=implementations)
        (folder / "sitecustomize.py").write_text(text)
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(folder), usual])))

    return planted


def tuned(capfd, *arguments: str) -> tuple[int, dict, str]:
    """Run the command with --json; return its status, its record and its progress."""
    status = main(["tune", *arguments, "--json"])
    out, err = capfd.readouterr()
    return status, json.loads(out), err


def test_a_search_and_its_repetition(cache, plant, capfd):
    plant("(plants.implementation('slow', plants.slow, {'times': 3}), *plants.of_plants(plants.shifted))")
    status, record, err = tuned(capfd, PROBLEM, "--export", str(cache / "rows.txt"))
    assert status == 0, err
    [found] = record["problems"]
    assert (found["problem"], found["choice"]) == (PROBLEM, "direct")
    assert {c["choice"]: c["outcome"] for c in found["candidates"]}["shifted"] == "wrong"
    assert record["outcomes"]["wrong"] == 1
    assert record["totals"]["speedup"] > 1.5
    assert {"mean", "median", "spread"} == set(found["before"]) == set(found["after"])
    assert "1 of 1 problems are faster" in err and "wrong: shifted" in err
    kept = database.Database(device_key(core.context().device))
    assert [w.choice for w in kept.winners()] == [Choice("direct")]
    pattern, [row] = rows.read((cache / "rows.txt").read_text())
    assert row == rows.TunedRow(PROBLEM, Choice("direct"))
    assert pattern >= set(device_class(core.context().device).split())

    started = time.monotonic()
    status, again, err = tuned(capfd, PROBLEM)
    assert status == 0 and again["problems"][0]["choice"] == "direct" and "(known)" in err
    assert again["outcomes"] == {}
    assert time.monotonic() - started < 20
    assert tuned(capfd, PROBLEM, "--again")[1]["outcomes"]["measured"] >= 1


def test_candidates_that_take_the_process_along_are_rows(cache, plant, monkeypatch, capfd):
    monkeypatch.setattr(supervise.Effort, "__init__", _impatient(supervise.Effort.__init__))
    hang = "lambda p, c, s=None: plants.hanging(p, c) if p.in_size[0] == 9 else plants.right(p, c)"
    plant(f"(*plants.of_plants(plants.right, plants.crashing), plants.implementation('hang', {hang}))")
    status, record, err = tuned(capfd, PROBLEM, OTHER)
    assert status == 0, err
    assert len(record["problems"]) == 2
    for found in record["problems"]:
        outcomes = {c["choice"]: (c["outcome"], c["reason"]) for c in found["candidates"]}
        assert outcomes["crashing"][0] == "crashed" and "-6" in outcomes["crashing"][1]
        assert found["choice"] == "heuristic"
        if found["problem"] == PROBLEM:
            assert outcomes["hang"] == ("timeout", "no end after 5 s")
    kept = database.Database(device_key(core.context().device))
    assert {c.outcome for c in kept.candidates(PROBLEM).values()} >= {"crashed", "timeout", "measured"}


def test_a_heuristic_that_crashes_loses_its_problem_only(cache, plant, capfd):
    crash = "lambda p, c, s=None: plants.crashing(p, c) if p.in_size[0] == 9 else plants.right(p, c)"
    plant(f"(plants.implementation('some', {crash}), *plants.of_plants())")
    status, record, _ = tuned(capfd, PROBLEM, OTHER)
    assert status == 1
    assert [f["problem"] for f in record["failed"]] == [PROBLEM]
    assert "crashed while trying heuristic" in record["failed"][0]["reason"]
    assert [f["problem"] for f in record["problems"]] == [OTHER]


def test_a_wrong_heuristic_is_a_failure(cache, plant, capfd):
    plant("plants.of_plants(plants.half)")
    status, record, _ = tuned(capfd, PROBLEM)
    assert status == 1
    assert "wrong: not a number" in record["failed"][0]["reason"]


def test_an_interrupted_search_goes_on(cache, plant, capfd):
    settings = ", ".join(f"{{'times': {times}}}" for times in range(2, 9))
    plant(f"(plants.implementation('slow', plants.slow, {settings}, {{'times': 7000000}}), *plants.of_plants())")
    command = [sys.executable, "-m", "clgraft.plugins.command_line", "tune", PROBLEM]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    kept = database.Database(device_key(core.context().device))
    end = time.monotonic() + 120
    while len(kept.candidates(PROBLEM)) < 9 and time.monotonic() < end:
        time.sleep(0.05)
    child.send_signal(signal.SIGINT)
    _, errors = child.communicate(timeout=60)
    assert child.returncode == 130 and "interrupted" in errors
    known = {str(choice) for choice in kept.candidates(PROBLEM)}
    assert {"heuristic", "direct", "slow times=2"} <= known and not kept.winners()
    plant(f"(plants.implementation('slow', plants.slow, {settings}), *plants.of_plants())")
    status, record, err = tuned(capfd, PROBLEM)
    assert status == 0, err
    tried = {candidate["choice"] for candidate in record["problems"][0]["candidates"]}
    assert not (tried & known) - {"heuristic", "direct"}
    assert record["problems"][0]["choice"] == "direct"


def test_a_budget_that_ends_is_an_exit_status(cache, plant, capfd):
    settings = ", ".join(f"{{'times': {times}}}" for times in range(2, 9))
    plant(f"(plants.implementation('slow', plants.slow, {settings}), *plants.of_plants())")
    status, record, err = tuned(capfd, PROBLEM, OTHER, "--budget", "0.001")
    assert status == 3
    assert record["left"] == 2 and "2 problems are left" in err
    status, record, err = tuned(capfd, PROBLEM, OTHER)
    assert status == 0 and record["left"] == 0
    assert [found["choice"] for found in record["problems"]] == ["direct", "direct"]


def test_results_that_cannot_be_kept_are_an_exit_status(monkeypatch, capfd):
    monkeypatch.setenv("CLGRAFT_CACHE", "off")
    status, record, err = tuned(capfd, "pool max n1 c1 ih4 iw4 kh4 kw4")
    assert status == 1 and len(record["problems"]) == 1
    assert "nowhere" in err and "not all could be kept" in err


def test_what_can_be_named(tmp_path):
    everything = wanted.Options()
    assert wanted.problems(["pool  max n1 c1 ih4 iw4 kh2 kw2"], everything) == [
        "pool forward max n1 c1 ih4 iw4 kh2 kw2"
    ]
    resnet = wanted.problems(["resnet50", "resnet50"], everything)
    assert len(resnet) == 3 * 23 and sum("backward_filter" in text for text in resnet) == 23
    assert len(wanted.problems(["resnet50"], wanted.Options(directions="forward"))) == 23
    assert all(" n3 " in text for text in wanted.problems(["resnet50"], wanted.Options(batch=3)))
    assert set(resnet) < set(wanted.problems(["conv"], everything))
    assert "batchnorm backward_training n8 c64 s3136" in wanted.problems(["norms"], everything)
    assert any(text.startswith("pool backward") for text in wanted.problems(["pool"], everything))
    file = tmp_path / "mine.txt"
    file.write_text("# mine\nfirst: conv n1 ic1 iw9 oc1 kw3\npool max n1 c1 ih4 iw4 kh2 kw2  # plain\n\n")
    assert wanted.problems([str(file)], everything) == [
        "conv forward n1 ic1 iw9 oc1 kw3",
        "pool forward max n1 c1 ih4 iw4 kh2 kw2",
    ]


@pytest.mark.parametrize(
    "word, reason",
    [
        ("resnet51", "got 'resnet51', expected a problem, a set"),
        ("conv n8 ic64 oc64", "expected iw"),
        ("conv colour", "got word 'colour'"),
        ("", "got ''"),
    ],
)
def test_what_cannot_be_named(word, reason, capfd):
    assert main(["tune", word]) == 1
    assert reason in capfd.readouterr().err


@pytest.mark.parametrize("arguments", [["--budget", "0"], ["--batch", "0"], ["--budget", "soon"], []])
def test_wrong_usage(arguments, capfd):
    with pytest.raises(SystemExit) as status:
        main(["tune", *(["resnet50"] if arguments else []), *arguments])
    assert status.value.code == 2


def test_a_prototxts_problems():
    path = NETS / "mobilenet_deploy.prototxt"
    task = registry.find(path).problems(path, {}, training=True)
    if not importlib.util.find_spec("caffe"):
        with pytest.raises(TuneError, match="Caffe is needed"):
            supervise.collect(task, None)
        return
    found = supervise.collect(task, None)
    assert any(text.startswith("conv forward g8 n1 ic8") for text in found)
    assert any(text.startswith("conv backward_filter") for text in found)
    forward = supervise.collect(registry.find(path).problems(path, {}, training=False), None)
    assert set(forward) < set(found) | set(forward) and not any("backward_filter" in text for text in forward)


@pytest.mark.skipif(importlib.util.find_spec("caffe") is None, reason="Caffe is not installed for this Python")
def test_a_prototxts_problems_inside_of_regions(tmp_path):
    path = NETS / "lenet.prototxt"
    task = with_regions(registry.find(path).problems(path, {}, training=True), True)
    found = supervise.collect(task, None)
    assert any(text.startswith("conv forward") for text in found)
    assert any(text.startswith("conv backward_filter") for text in found)
    swapped = tmp_path / "swapped.prototxt"
    swapped.write_text(swap_net(path.read_text(), regions=True)[0])
    assert supervise.collect(registry.find(swapped).problems(swapped, {}, training=True), None) == found


def test_a_symbols_problems_inside_of_regions(tmp_path):
    mxnet = pytest.importorskip("mxnet")
    net = mxnet.sym.Convolution(mxnet.sym.var("data"), kernel=(3, 3), num_filter=4, name="c")
    path = tmp_path / "net-symbol.json"
    mxnet.sym.softmax(mxnet.sym.Activation(net, act_type="relu")).save(str(path))
    found = wanted.problems([str(path)], wanted.Options(shapes={"data": [2, 3, 7, 9]}, regions=True))
    assert {"conv forward", "conv backward_filter", "softmax backward"} <= {" ".join(t.split()[:2]) for t in found}


def test_a_symbols_problems(tmp_path, capfd):
    if not importlib.util.find_spec("mxnet"):
        with pytest.raises(TuneError, match="MXNet is needed"):
            supervise.collect(registry.find(Path("x.json")).problems(Path("x.json"), {}, True), None)
        return
    mxnet = pytest.importorskip("mxnet")
    net = mxnet.sym.Convolution(mxnet.sym.var("data"), kernel=(3, 3), num_filter=4, name="c")
    net = mxnet.sym.Activation(net, act_type="relu")
    path = tmp_path / "net-symbol.json"
    net.save(str(path))
    assert main(["tune", str(path)]) == 1
    assert "expected --shape data=N,N,..." in capfd.readouterr().err
    found = wanted.problems([str(path)], wanted.Options(shapes={"data": [2, 3, 7, 9]}))
    for direction in ("forward", "backward_data", "backward_filter"):
        assert any(text.startswith(f"conv {direction} n2 ic3 ih7 iw9 oc4 kh3 kw3") for text in found), direction
    assert any(text.startswith("pointwise") for text in found)


def _impatient(real):
    def init(self, **values):
        real(self, **{**values, "candidate_seconds": 5.0})

    return init


def test_a_budget_goes_to_the_problems_that_take_most_time_first():
    small, large = "conv forward n1 ic4 ih8 iw8 oc4 kh3 kw3", "conv forward n8 ic256 ih28 iw28 oc256 kh3 kw3"
    moved = "pool forward max n8 c64 ih112 iw112 kh2 kw2 sh2 sw2"
    assert budget.ordered([small, moved, large]) == [large, moved, small]
    assert budget.seconds([large, small], 100, 60) == 60  # the most of one problem
    assert budget.seconds([large, moved], 100, 1000) == pytest.approx(100, rel=0.2)
    assert budget.seconds([small, small], 4, 60) == 4  # what is left
    assert budget.seconds([small] * 50, 100, 60) == budget.LEAST_SECONDS
    assert budget.forecast([small] * 50, 60, 60) == (
        "budget 60 s: enough for 6 of 50 problems, which take about 12% of the time; all of them need at least 500 s"
    )
    assert budget.forecast([small, large], 200, 60) == "budget 200 s: enough for every problem"


def test_a_disturbed_measurement_is_marked():
    def finished(spread: float) -> str:
        output = io.StringIO()
        times = {"mean": 1e-3, "median": 1e-3, "spread": spread}
        event = {"problem": "p", "choice": "heuristic", "complete": True, "before": times, "after": times, "kept": True}
        with Report(["p"], output) as report:
            report.take({"event": "winner", **event})
        return output.getvalue()

    assert "disturbed: spread 75 %" in finished(0.75) and "disturbed" not in finished(0.4)


def test_the_summary_has_one_statistic():
    output = io.StringIO()
    before, after = ({"mean": 9.0, "median": each, "spread": 0.1 * each} for each in (0.004, 0.001))
    winner = {"problem": "p", "choice": "direct", "complete": True, "before": before, "after": after, "kept": True}
    with Report(["p"], output) as report:
        report.take({"event": "winner", **winner})
        report.finish("here")
    summary = output.getvalue().splitlines()[1:]
    assert summary == [
        "1 of 1 problems are faster; medians 4.00 -> 1.00 ms in sum, 4.000x in the geometric mean; spread 0.0 -> 0.0 %",
        "results: here",
    ]
    assert report.totals()["before_mean"] == 9.0  # for programs
