"""C and C++ programs that know only clgraft.h."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_c_program_convolves_and_takes_gradients(run_program):
    done = run_program("convolve.c")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("conv ") == 5
    assert "errors: y" in done.stdout


def test_verbose_lines_come_from_c(run_program, monkeypatch):
    monkeypatch.setenv("CLGRAFT_VERBOSE", "plan,run")
    done = run_program("convolve.c")
    lines = [line.split(",") for line in done.stderr.splitlines() if line.startswith("clgraft,")]
    assert {words[1] for words in lines} == {"plan", "run"}
    assert all(words[3].startswith("conv ") and float(words[4]) >= 0 for words in lines)


def test_every_function_refuses_misuse(run_program):
    done = run_program("misuse.c")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 failures" in done.stdout
    assert int(done.stdout.rsplit("checks", 1)[0].split()[-1]) >= 60


def test_graphs_arrays_and_events_refuse_misuse(run_program):
    done = run_program("misuse_graphs.c")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 failures" in done.stdout
    assert int(done.stdout.rsplit("checks", 1)[0].split()[-1]) >= 70


def test_inputs_of_graphs_are_outputs(run_program):
    done = run_program("graph_inputs.c")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 failures" in done.stdout


@pytest.mark.parametrize("compiler", ["gcc", "g++"])
def test_the_example_trains_and_infers(run_program, compiler):
    """It checks its own numbers, and is C and C++."""
    done = run_program(str(ROOT / "examples" / "c" / "net.c"), compiler=compiler)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("graph of ") and "launches; arena" in lines[1]
    first, last = (float(word) for word in re.findall(r"([\d.e-]+) at first, ([\d.e-]+) after", lines[-2])[0])
    assert last < first / 2
    assert lines[-1].startswith("inference: ")


def test_cpp_program_threads(run_program):
    done = run_program("threads.cpp", compiler="g++")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 threads agree" in done.stdout


def test_calls_are_not_overtaken(run_program):
    """Four threads have 64 runs started at any time: a call waits for these, and for no thousands that come later."""
    done = run_program("fairness.c")
    assert done.returncode == 0, done.stdout + done.stderr
    passed = dict(line.split(": ") for line in done.stdout.splitlines())
    assert list(passed) == ["run", "read", "finish"]
    # a call that the machine does not let begin sees some more pass
    assert all(int(count) <= 1000 for count in passed.values()), passed
