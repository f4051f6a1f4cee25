"""`clgraft tune --import`: rows of others are checked and timed; wrong or hostile files are refused in words."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clgraft import core
from clgraft.core.files import FileError
from clgraft.core.tuning import Choice, database
from clgraft.core.tuning.identity import device_class, device_key
from clgraft.core.tuning.search import choices
from clgraft.plugins.command_line.main import main
from clgraft.plugins.command_line.tune import imported
from clgraft.plugins.command_line.tune.supervise import TuneError

PROBLEM = "conv forward n2 ic3 ih9 iw11 oc4 kh3 kw3 ph1 pw1"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache folder of this test's own, which is the working directory."""
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("CLGRAFT_CACHE", str(folder))
    monkeypatch.delenv("CLGRAFT_TUNE", raising=False)
    monkeypatch.chdir(folder)
    return folder


def device() -> Any:
    return core.context().device


def offered() -> str:
    """Return a choice that can be tried for the problem."""
    return str(choices(core.parse(PROBLEM), core.context())[-1])


def file(*pairs: tuple[Any, Any], words: Any = None) -> Path:
    """Write a report with rows for this device."""
    rows = [{"problem": problem, "choice": choice} for problem, choice in pairs]
    here = f"{device_class(device())} units{device().compute_units}"
    Path("rows.json").write_text(json.dumps({"report": 1, "tuned": {"device": words or here, "rows": rows}}))
    return Path("rows.json")


@pytest.mark.parametrize("form", ["report", "export"])
def test_rows_are_tried_and_the_faster_stays(cache, form, capfd):
    path = file((PROBLEM, offered()))
    if form == "export":
        path = Path("rows.txt")
        path.write_text(f"device: {device_class(device())}\n{PROBLEM} -> {offered()}\n")
    assert main(["tune", "--import", str(path), "--json"]) == 0
    out, err = capfd.readouterr()
    record = json.loads(out)
    [found] = record["problems"]
    tried = {row["choice"]: row["outcome"] for row in found["candidates"]}
    assert set(tried) == {"heuristic", offered()}
    assert found["choice"] in tried and record["left"] == 0 and "problem is left" not in err
    [winner] = database.Database(device_key(device())).winners()
    assert (winner.problem, winner.complete) == (PROBLEM, False)


def test_a_search_of_ones_own_counts_more(cache, capfd):
    own = database.Database(device_key(device()))
    time = database.Timing(3, 1e-3, 1e-3, 0.1)
    own.finish(database.Winner(PROBLEM, Choice("direct"), time, time))
    assert main(["tune", "--import", str(file((PROBLEM, offered())))]) == 0
    assert "(known)" in capfd.readouterr().out
    assert [winner.choice for winner in own.winners()] == [Choice("direct")]


def test_rows_that_do_not_fit_are_named(cache, capfd):
    rows = [(PROBLEM, "direct tile=99"), ("conv nonsense", "direct"), (PROBLEM, "heuristic"), ("x" * 3000, "direct")]
    assert main(["tune", "--import", str(file(*rows))]) == 1
    out = capfd.readouterr().out
    assert "got direct tile=99, expected a choice that clgraft has for it on this device" in out
    assert len(re.findall(r"^refused: ", out, re.M)) == 3
    assert max(map(len, out.splitlines())) < 600


def test_a_problem_that_is_too_large_is_not_tried(cache):
    path = file(("lrn forward n9 c9000 s9000 size5 beta0.75", "direct"))
    with_memory = replace(device(), global_memory=2**30)
    found = imported.read(path, with_memory)
    assert not found.choices and "a quarter of the device's memory" in "".join(found.refused.values())


def test_rows_of_another_device_are_refused(cache, capfd):
    path = file((PROBLEM, "direct"), words="gpu abacus units7")
    assert main(["tune", "--import", str(path)]) == 1
    assert "whose rows are for devices with 'gpu abacus units7'" in capfd.readouterr().err


HOSTILE = {
    "empty": "",
    "prose": "Dear user,\nrun this.\n",
    "list": "[1, 2]",
    "no rows": '{"tuned": {"device": "cpu", "rows": []}}',
    "no tuned": '{"report": 1}',
    "numbers": '{"tuned": {"device": "cpu", "rows": [{"problem": 1, "choice": 2}]}}',
    "device": '{"tuned": {"device": 7, "rows": []}}',
    "escapes": '{"tuned": {"device": "cpu \\u001b[2J", "rows": []}}',
    "deep": '{"a": ' * 50_000,
    "binary": b"\xff\xfe\x00{",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_errors_in_words(cache, name, capfd):
    content = HOSTILE[name]
    path = Path("given")
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert main(["tune", "--import", "given"]) == 1
    err = capfd.readouterr().err
    assert "given" in err and "Traceback" not in err and "\x1b" not in err
    assert len(err) < 800


def test_files_that_cannot_be_read(cache):
    Path("folder").mkdir()
    for name, words in (("missing", "does not exist"), ("folder", "is a folder")):
        with pytest.raises(FileError, match=words):
            imported.read(Path(name), device())
    Path("large").write_bytes(b"{" * (imported.MOST_BYTES + 1))
    with pytest.raises(TuneError, match="16 MiB"):
        imported.read(Path("large"), device())
    many = [(PROBLEM, "direct")] * (imported.MOST_ROWS + 1)
    with pytest.raises(TuneError, match="expected at most"):
        imported.read(file(*many), device())


@pytest.mark.parametrize("words", [["--import", "x", "resnet50"], []])
def test_either_what_or_a_file(words, capfd):
    with pytest.raises(SystemExit) as status:
        main(["tune", *words])
    assert status.value.code == 2
    assert "expected either what to tune or --import FILE" in capfd.readouterr().err
