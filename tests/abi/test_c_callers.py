"""C and C++ programs that know only clgraft.h."""

from __future__ import annotations


def test_c_program_convolves_and_takes_gradients(run_program):
    done = run_program("convolve.c")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("conv ") == 5
    assert "errors: y" in done.stdout


def test_every_function_refuses_misuse(run_program):
    done = run_program("misuse.c")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 failures" in done.stdout
    assert int(done.stdout.rsplit("checks", 1)[0].split()[-1]) >= 60


def test_cpp_program_threads(run_program):
    done = run_program("threads.cpp", compiler="g++")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 threads agree" in done.stdout
