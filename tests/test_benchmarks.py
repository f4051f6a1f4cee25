"""The programs of `benchmarks/` say what they measure before rows come, which may take minutes."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys

import pytest

from clgraft.core.graph.compiled import CompiledGraph
from clgraft.core.planning.floor import Peaks
from tests.core.graphs import sample, small_net
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


def test_the_launches_of_a_pass_run_again(context, rng, monkeypatch, capsys):
    """`cores.py` enqueues the kernels of the plan, because others of the same programs have no arguments."""
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setattr(CompiledGraph, "_handed_over", CompiledGraph._handed_over)  # back in its place at the end
    cores = importlib.import_module("cores")
    passes, graph = cores.Passes(), small_net()
    context.compile(graph).run(sample(graph, rng))
    ((name, launches),) = passes.found
    inside, alone, whole = cores.replay(launches, context)
    assert len(inside) == len(alone) == len(launches) > 2 and whole > 0 and name
    cores.show_problems(launches, inside, alone, Peaks(1e11, 1e10), 3)
    assert "method: problem" in capsys.readouterr().out
