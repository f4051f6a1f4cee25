"""`python -m clgraft.core.abi.embed FOLDER`: what it makes, what it says, and which Python the library takes."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import clgraft
from clgraft.core import abi
from clgraft.core.abi import embed
from clgraft.core.errors import BuildError

HERE = Path(__file__).parent
VERSION = "{}.{}".format(*sys.version_info)


def test_library_header_and_pkg_config_file(library):
    assert sorted(path.name for path in library.iterdir()) == ["clgraft.h", "clgraft.pc", "libclgraft.so"]
    assert (library / "clgraft.h").read_text() == Path(abi.__file__).with_name("clgraft.h").read_text()


@pytest.mark.skipif(shutil.which("pkg-config") is None, reason="needs pkg-config")
def test_pkg_config_knows_the_folder_wherever_it_is_moved(library, tmp_path):
    moved = Path(shutil.copytree(library, tmp_path / "moved"))
    environment = {**os.environ, "PKG_CONFIG_PATH": str(moved)}

    def answer(*words: str) -> str:
        done = subprocess.run(["pkg-config", *words, "clgraft"], capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    assert answer("--modversion") == clgraft.__version__
    command = ["gcc", str(HERE / "convolve.c"), *shlex.split(answer("--cflags", "--libs")), "-lm", "-o", "program"]
    built = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    assert (
        f"{moved}/libclgraft.so" in subprocess.run(["ldd", tmp_path / "program"], capture_output=True, text=True).stdout
    )


def test_the_printed_line_compiles(tmp_path):
    command = [sys.executable, "-m", "clgraft.core.abi.embed", str(tmp_path / "new" / "folder")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == str(tmp_path / "new" / "folder" / "libclgraft.so")
    line = re.search(r"^  (cc program\.c -I.*)$", done.stdout, re.M)[1]
    shutil.copy(HERE / "convolve.c", tmp_path / "program.c")
    built = subprocess.run(f"{line} -lm", shell=True, cwd=tmp_path, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    assert (tmp_path / "program").exists()


def test_the_library_takes_the_python_that_is_named(run_program):
    done = run_program("convolve.c", CLGRAFT_PYTHON=sys.executable)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "name, words",
    [
        ("/no/such/python", "got CLGRAFT_PYTHON=/no/such/python, which cannot be run (No such file or directory)"),
        ("{folder}/other", "of Python 2.0, expected an interpreter of Python " + VERSION),
        ("{folder}/elsewhere", "expected those of CLGRAFT_PYTHON="),
    ],
)
def test_a_python_that_does_not_fit_is_refused(run_program, tmp_path, name, words):
    """Another version has other packages, and a name that is no interpreter must not mean the default one."""
    for script, answer in (("other", "2.0 /usr"), ("elsewhere", f"{VERSION} {tmp_path}")):
        (tmp_path / script).write_text(f"#!/bin/sh\necho {answer}\n")
        (tmp_path / script).chmod(0o755)
    # these are no interpreters with a home of their own, so the packages are those of the path
    done = run_program(
        "convolve.c", CLGRAFT_PYTHON=name.format(folder=tmp_path), PYTHONPATH=os.pathsep.join(filter(None, sys.path))
    )
    assert done.returncode != 0
    assert "status 8" in done.stdout + done.stderr, done.stdout + done.stderr
    assert words in done.stdout + done.stderr


def test_a_python_that_is_not_there_is_the_first_line(run_program):
    """Python itself says nothing of it in many lines before."""
    for name in ("/no/such/python", "no-such-python"):
        done = run_program("convolve.c", CLGRAFT_PYTHON=name)
        assert done.returncode != 0
        first = (done.stderr + done.stdout).splitlines()[0]
        assert f"got CLGRAFT_PYTHON={name}, which cannot be run (No such file or directory), expected an" in first


@pytest.mark.parametrize(
    "change, words",
    [
        ({"CC": "/no/such/compiler"}, "got no C compiler (tried /no/such/compiler), expected one on PATH or in CC"),
        ({"CC": "false"}, "got an error of the C compiler"),
    ],
)
def test_what_is_missing_is_named(monkeypatch, tmp_path, change, words):
    for name, value in change.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(BuildError, match=re.escape(words)):
        embed.make(tmp_path)
    assert not (tmp_path / "libclgraft.so").exists()


@pytest.mark.parametrize(
    "names, words",
    [
        (["LIBDIR", "LDLIBRARY", "INSTSONAME"], f"without a shared library in /no, expected libpython{VERSION}.so"),
        (["include"], f"got no /no/Python.h, expected the headers of Python {VERSION}"),
    ],
)
def test_a_python_without_its_headers_or_library_is_named(monkeypatch, tmp_path, names, words):
    values = {"LIBDIR": "/no", "LDLIBRARY": "libpython.a", "INSTSONAME": "libpython.a"}
    real = embed.sysconfig.get_config_var
    if names == ["include"]:
        monkeypatch.setattr(embed.sysconfig, "get_paths", lambda: {"include": "/no"})
    else:
        monkeypatch.setattr(embed.sysconfig, "get_config_var", lambda name: values.get(name, real(name)))
    with pytest.raises(BuildError, match=re.escape(words)):
        embed.make(tmp_path)
