"""Builds libclgraft.so and the C programs of this folder once per test run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    """The folder of a freshly made libclgraft.so with its header, by the command that users run."""
    folder = tmp_path_factory.mktemp("lib")
    done = subprocess.run([sys.executable, "-m", "clgraft.core.abi.embed", str(folder)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="session")
def run_program(library, tmp_path_factory):
    """Compile a C or C++ file against the header and the library alone, run it, and return the process."""
    folder = tmp_path_factory.mktemp("bin")

    def run(source: str, *arguments: str, compiler: str = "gcc", timeout: int = 300, **environment: str):
        program = folder / Path(source).stem
        command = [
            compiler,
            str(HERE / source),
            "-Wall",
            "-Wextra",
            "-Werror",
            f"-I{library}",
            f"-L{library}",
            "-lclgraft",
            "-lm",
        ]
        built = subprocess.run([*command, f"-Wl,-rpath,{library}", "-o", str(program)], capture_output=True, text=True)
        assert built.returncode == 0, built.stderr
        return subprocess.run(
            [str(program), *arguments],
            capture_output=True,
            text=True,
            timeout=timeout,
            env={**os.environ, **environment},
        )

    return run
