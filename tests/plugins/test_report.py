"""`clgraft report`: what is in its files, and what it refuses to overwrite."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from clgraft import core
from clgraft.core.planning.choice import HEURISTIC
from clgraft.core.tuning import Choice
from clgraft.core.tuning.database import Database, Timing, Winner
from clgraft.core.tuning.identity import device_key
from clgraft.plugins.command_line.bench import command as bench
from clgraft.plugins.command_line.bench.results import Measurement, Results
from clgraft.plugins.command_line.check import runner
from clgraft.plugins.command_line.check.runner import CheckRow
from clgraft.plugins.command_line.main import main
from clgraft.plugins.command_line.report import gather, page
from clgraft.plugins.command_line.report.device_report import Checked, DeviceReport
from clgraft.plugins.plugin import PluginError

PROBLEM = "conv forward n2 ic3 ih9 iw11 oc4 kh3 kw3 ph1 pw1"
ROWS = [CheckRow(PROBLEM, "y", 1e-6, 1e-4), CheckRow("lrn forward n1 c3 s4 size5 beta0.75", "y", 1e-5, 1e-4)]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache folder of this test's own."""
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("CLGRAFT_CACHE", str(folder))
    return folder


@pytest.fixture
def quick(cache, monkeypatch, tmp_path):
    """Let checks and measurements be made up, in the test's own folder; return the rows of the check."""
    rows = list(ROWS)

    def check(module, arguments, device, counted):
        counted(3)
        yield from rows

    def measure(options, given, until):
        assert len(given) == 10 and not options.sets
        figures = {"native": 0.02, "ours": 0.01, "native_spread": 0.6, "floor": 0.005}
        one = Measurement("classic", "3x3-64-56", "conv ...", "3x3", "forward", "numpy", **figures)
        net = replace(one, set="nets", name="resnet18_v1 batch 8", direction="training", regions=0.005)
        return Results("0:0 P / D", "", 2, 1e11, 1e10, {"numpy": "numpy 2"}, [one, net], versions={"clgraft": "0"})

    monkeypatch.setattr(runner, "run", check)
    monkeypatch.setattr(bench, "measure", measure)
    monkeypatch.chdir(tmp_path)
    return rows


def test_a_pair_of_files(quick, capfd):
    database = Database(device_key(core.context().device))
    fast, slow = Timing(3, 1e-3, 1e-3, 0.1), Timing(3, 2e-3, 2e-3, 0.1)
    database.finish(Winner(PROBLEM, Choice("direct"), slow, fast))
    database.finish(Winner("softmax forward n2 c3 s4", HEURISTIC, slow, slow))
    assert main(["report", "-o", "mine.md", "--seconds", "9"]) == 0
    out = capfd.readouterr().out
    assert "wrote mine.md" in out and "wrote mine.json" in out
    report = DeviceReport.read(Path("mine.json"))
    assert report.to_json() == Path("mine.json").read_text()
    assert page.markdown(report) == Path("mine.md").read_text()
    assert report.bench.command == "clgraft report --seconds=9.0"
    assert (report.check.rows, report.check.passed, report.check.of, report.check.worst) == (2, 2, 3, 0.1)
    assert report.capabilities["name"] == core.context().device.name
    row = {"problem": PROBLEM, "choice": "direct", "before": 2e-3, "after": 1e-3}
    assert report.tuned["rows"] == [row]
    text = Path("mine.md").read_text()
    assert text.startswith("# clgraft report: ")
    assert "| classic 3x3-64-56 | numpy | 10 / 20: 2.00*, 50% | - |" in text
    assert "| resnet18_v1 batch 8 | numpy | 5 / 20: 4.00*" in text
    assert f"    {PROBLEM} -> direct" in text
    assert main(["report", "-o", "mine"]) == 0  # it may write its own files anew


def test_failed_rows_and_a_check_that_ends_early(quick, monkeypatch, capfd):
    quick[1] = replace(quick[1], error=math.nan)
    assert main(["report"]) == 1
    assert "FAIL" in capfd.readouterr().out
    report = DeviceReport.read(Path("clgraft-report.json"))
    assert (report.check.rows, report.check.passed, len(report.check.failed)) == (2, 1, 1)
    monkeypatch.setattr(gather, "CHECK_SHARE", -1)
    checked = gather.check_operators(core.context().device, None, 0.0)
    assert checked.problems == 1 and "with 1 of 3 problems" in checked.ended

    def died(*arguments):
        yield ROWS[0]
        raise runner.CheckError("[check] the process ended with status -11")

    monkeypatch.setattr(runner, "run", died)
    assert gather.check_operators(core.context().device, None, math.inf).ended.endswith("status -11")


def test_files_of_others_stay(quick, capfd):
    Path("notes.md").write_text("mine\n")
    assert main(["report", "-o", "notes"]) == 1
    assert "notes.md to write to, which clgraft report has not written" in capfd.readouterr().err
    assert Path("notes.md").read_text() == "mine\n" and not Path("notes.json").exists()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"report": 2}', '{"report": 1, "bench": 3}', "[" * 100_000])
def test_a_file_of_something_else_is_refused(tmp_path, text):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(PluginError, match="expected a file of `clgraft report`"):
        DeviceReport.read(tmp_path / "x.json")


def test_a_busy_machine_is_noted(capfd):
    assert gather.busy(0.2, 2) == ""
    assert "a load of 5.0 on 2 cores" in gather.busy(5.0, 2)
    assert "other work disturbed the figures" in capfd.readouterr().err


def test_the_problems_are_ten_of_the_sets():
    assert len(gather.problems()) == 10
    assert set(gather.nets(["numpy"])) == set()


def test_a_check_in_words():
    assert str(Checked(4, 3, 2, 9, 1.0, 0.25)) == (
        "3 of 4 rows pass, of 2 problems; the largest error is 25% of what is allowed"
    )


@pytest.mark.exhaustive
def test_a_report_of_this_device(cache, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    assert main(["report", "--peers", "numpy", "--seconds", "6"]) == 0
    report = json.loads(Path("clgraft-report.json").read_text())
    assert report["check"]["rows"] == report["check"]["passed"] > 0
    assert report["bench"]["peak_flops"] > 0
