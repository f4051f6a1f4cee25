"""C and C++ programs that know only clgraft.h."""

from __future__ import annotations


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


def test_cpp_program_threads(run_program):
    done = run_program("threads.cpp", compiler="g++")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 threads agree" in done.stdout
