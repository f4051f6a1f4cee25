"""`clgraft caffe`: the environment in which the Python inside of the caffe binary finds clgraft.

A script that runs the bare interpreter stands for the binary here; test_caffe_binary.py has the real one.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

import pytest

from clgraft.plugins.caffe import PLUGIN, run

BARE = os.path.realpath(sys.executable)  # the interpreter without the virtual environment's packages


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """A folder of packages with an editable install: a `.pth` file that names the place of the sources."""
    (tmp_path / "sources").mkdir()
    (tmp_path / "sources" / "editable_install.py").write_text("word = 'found'\n")
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "editable.pth").write_text(f"{tmp_path / 'sources'}\n")
    monkeypatch.setattr(run, "package_folders", lambda: [str(folder)])
    return folder


def embedded(code, environment):
    """Run a piece of Python as the binary's Python would."""
    return subprocess.run([BARE, "-c", code], env=environment, capture_output=True, text=True, timeout=60)


def test_embedded_python_finds_an_editable_install(packages):
    code = "import editable_install; print(editable_install.word)"
    documented_before = {**os.environ, "PYTHONPATH": str(packages)}
    assert "ModuleNotFoundError" in embedded(code, documented_before).stderr
    done = embedded(code, run.environment(os.environ))
    assert (done.returncode, done.stdout) == (0, "found\n"), done.stderr


def test_clgraft_and_what_it_needs_are_found():
    """With the packages of this very Python, wherever clgraft itself is installed."""
    base = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    done = embedded("import clgraft.caffe_layers, cffi, numpy, pyopencl; print('fine')", run.environment(base))
    assert done.stdout == "fine\n", done.stderr


def test_the_rest_of_the_environment_stays(packages, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import os; os.environ['MINE_RAN'] = 'yes'\n")
    base = {**os.environ, "PYTHONPATH": str(tmp_path), "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "cpp", "WORD": "w"}
    made = run.environment(base)
    assert made["PYTHONPATH"].split(os.pathsep)[1:] == [str(tmp_path)]
    assert (made["PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"], made["WORD"]) == ("cpp", "w")
    code = "import os, sys, editable_install; print(os.environ['MINE_RAN'], sys.modules['sitecustomize'].__file__)"
    done = embedded(code, made)
    assert done.stdout.split() == ["yes", str(tmp_path / "sitecustomize.py")], done.stderr
    bare = embedded("import editable_install, sitecustomize", run.environment({"PATH": os.environ["PATH"]}))
    assert bare.returncode == 0, bare.stderr


def test_a_virtual_environment_does_not_hide_the_systems_packages(monkeypatch, tmp_path):
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "venv"))
    base = {"PATH": os.pathsep.join([str(tmp_path / "venv" / "bin"), "/usr/bin", "/bin"]), "VIRTUAL_ENV": "x"}
    made = run.environment(base)
    assert made["PATH"].split(os.pathsep) == ["/usr/bin", "/bin"]
    assert "VIRTUAL_ENV" not in made


@pytest.mark.parametrize(("version", "expected"), [(3, None), (4, "python"), (6, "python")])
def test_new_protobuf_runs_in_pure_python(monkeypatch, version, expected):
    monkeypatch.setattr(run, "_protobuf", lambda: version)
    assert run.environment({}).get("PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION") == expected


def test_another_python_in_the_binary_is_told(packages):
    made = {**run.environment(os.environ), "CLGRAFT_CAFFE_PYTHON": "3.5"}
    done = embedded("import editable_install", made)
    assert done.returncode != 0
    assert f"got a caffe that embeds Python {sys.version_info[0]}.{sys.version_info[1]}, expected 3.5" in done.stderr


def parse(*arguments):
    parser = argparse.ArgumentParser(prog="clgraft")
    PLUGIN.add_commands(parser.add_subparsers())
    return parser.parse_args(["caffe", *arguments])


def test_arguments_are_caffes_own():
    options = parse("train", "-solver", "s.prototxt", "--weights=a.caffemodel", "--help")
    assert (options.action, options.binary) == ("train", None)
    assert options.arguments == ["-solver", "s.prototxt", "--weights=a.caffemodel", "--help"]
    assert parse("--binary", "tools/caffe", "time", "-gpu", "0").binary == Path("tools/caffe")


def test_finding_the_binary(tmp_path, monkeypatch):
    binary = tmp_path / "build" / "tools" / "caffe"
    binary.parent.mkdir(parents=True)
    binary.write_text("#!/bin/sh\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CAFFE_ROOT", raising=False)
    with pytest.raises(run.CaffeError, match="got no caffe command on PATH"):
        run.find_binary()
    with pytest.raises(run.CaffeError, match="expected a caffe command that can be run"):
        run.find_binary(binary)
    binary.chmod(0o755)
    assert run.find_binary(binary) == str(binary)
    monkeypatch.setenv("CAFFE_ROOT", str(tmp_path))
    assert run.find_binary() == str(binary)
    monkeypatch.setenv("PATH", str(binary.parent))
    monkeypatch.delenv("CAFFE_ROOT")
    assert run.find_binary() == str(binary)


def test_the_binary_takes_the_place_of_clgraft(tmp_path):
    """Its output and status are caffe's own."""
    binary = tmp_path / "caffe"
    binary.write_text(f'#!/bin/sh\n{BARE} -c "import clgraft.caffe_layers" || exit 9\necho "$@"\nexit 7\n')
    binary.chmod(0o755)
    code = (
        "import argparse; from clgraft.plugins.caffe import run; parser = argparse.ArgumentParser();"
        "run.add_command(parser.add_subparsers()); options = parser.parse_args(); options.run(options)"
    )
    line = [sys.executable, "-c", code, "caffe", "--binary", str(binary), "train", "-solver", "a b.prototxt"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (7, "train -solver a b.prototxt\n"), done.stderr
