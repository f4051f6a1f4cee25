"""The programs of `benchmarks/` say what they measure before rows come, which may take minutes."""

from __future__ import annotations

import importlib.util
import re
import sys

import pytest

from tests.folders import ROOT

FOLDER = ROOT / "benchmarks"
PROGRAMS = [path for path in sorted(FOLDER.glob("*.py")) if re.search(r"^def main\(", path.read_text(), re.M)]


@pytest.mark.parametrize("path", [path for path in PROGRAMS if path.stem != "report"], ids=lambda path: path.stem)
def test_every_program_shows_progress(path):
    assert re.search(r"\b(announced|say|terminal\.Progress)\(", path.read_text()), "see benchmarks/progress.py"


def test_progress_goes_to_stderr_line_by_line(capfd):
    spec = importlib.util.spec_from_file_location("progress_of_benchmarks", FOLDER / "progress.py")
    progress = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(progress)
    for item in progress.announced({"a": 1, "b": 2}.items(), progress.first):
        print(item, file=sys.stderr)
    assert capfd.readouterr() == ("", "measuring a, 1 of 2\n('a', 1)\nmeasuring b, 2 of 2\n('b', 2)\n")
