"""The tables of figures on the pages are those that `benchmarks/report.py` writes from the files of results."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from clgraft.plugins.command_line.bench.results import Results

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted((ROOT / "benchmarks" / "results").glob("*.json"))


def load() -> Any:
    """Return the program, which stands outside of the package."""
    spec = importlib.util.spec_from_file_location("benchmarks_report", ROOT / "benchmarks" / "report.py")
    assert spec and spec.loader
    sys.path.append(str(ROOT / "benchmarks"))  # the program imports what stands next to it
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


report = load()


@pytest.mark.parametrize("page", report.PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_pages_agree_with_the_files(page: Path):
    text = page.read_text(encoding="utf-8")
    assert report.MARK.search(text)
    assert text == report.filled(text, report.RESULTS), "run python benchmarks/report.py"


def test_another_figure_is_noticed(tmp_path):
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        if path.stem == "h100-graphs":
            text = text.replace('"ours": 0.', '"ours": 9.')
        (tmp_path / path.name).write_text(text, encoding="utf-8")
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert report.filled(text, tmp_path) != text == report.filled(text, report.RESULTS)


def test_the_figure_agrees_with_the_files():
    text = report.FIGURE.read_text(encoding="utf-8")
    assert text == report.figure(report.RESULTS), "run python benchmarks/report.py"
    table = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8").split("<!-- end -->")[0]
    assert text.count(", against ") == len(re.findall(r"^\| [^|]+ \|", table, re.M)) - 1
    assert f"(figures/{report.FIGURE.name})" in (ROOT / "docs" / "index.md").read_text(encoding="utf-8")


def test_every_file_is_shown():
    pages = [page for page in report.PAGES if page.parent == report.DOCS]
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    assert [path.stem for path in FILES if path.stem not in report.used(text)] == []


def test_the_page_is_short_and_begins_with_the_answers():
    lines = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 250
    assert any("instead of" in line for line in lines[:15]) and any("Do not use" in line for line in lines[:30])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_says_where_it_was_measured(path: Path):
    results = Results.read(path)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", results.date)
    assert results.device and results.command and results.threads and results.versions.get("clgraft")
    assert results.rows and all(row.ours > 0 for row in results.rows)
    ours = {"-", "regions", "frozen"}  # clgraft in MXNet
    assert {row.peer for row in results.rows} - ours <= set(results.peers)
    assert not re.search(r"(?:^|[ =])/", results.command), "a path of one machine"


def test_columns_and_means():
    rows = [
        {"set": "nets", "name": name, "text": name, "group": "net", "direction": "inference", "peer": "mxnet"}
        | {"native": native, "ours": 2.0, "regions": 1.0, "regions_floor": 0.5, "frozen": 0.5}
        for name, native in (("a batch 8", 2.0), ("b batch 8", 0.5))
    ]
    run = report.Run(
        "x", "", Results("0:0 P / D", "command", 2, 1e11, 1e10, {"mxnet": "mxnet 1"}, [_row(r) for r in rows])
    )
    assert report.nets([run]) == [
        "| net | inference | frozen inference |",
        "|---|---|---|",
        "| a | 1000 / 2000: 2.00, 50 % | 500 / 2000: 4.00 |",
        "| b | 1000 / 500: 0.50, 50 % | 500 / 500: 1.00 |",
        "| **geometric mean** | 1.00, 50 % | 2.00 |",
    ]
    assert report.overview([run])[2] == "| D | MXNet 1 | 2 | **1.00** (0.50 to 2.00), 50 % | - |"
    assert report.span([run], "inference") == "0.5 to 2"
    taken = {"set": "memory", "ours": 1.0, "memory": 1e9, "native_memory": 2e9}
    run.results.rows += [_row({**rows[0], **taken}), _row({**rows[1], **taken, "memory": 4e9})]
    assert report.memory([run])[::2] == ["| GB | a | b |", "| inference | 1.00 / 2.00 | 4.00 / 2.00 |"]
    assert report.overview([run])[2].endswith(", 50 % | - | 1.00 / - |")
    step = _row({**rows[0], "direction": "training", "frozen": 0.0, "updated": 0.8, "updated_floor": 0.4})
    run.results.rows[:] = [step]
    assert report.nets([run])[0::2] == [
        "| net | training step | step, `ocl_sgd` |",
        "| a | 1000 / 2000: 2.00, 50 % | 800 / 2000: 2.50, 50 % |",
    ]


def _row(content: dict[str, Any]) -> Any:
    from clgraft.plugins.command_line.bench.results import Measurement

    return Measurement(**content)
