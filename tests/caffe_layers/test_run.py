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
from clgraft.plugins.command_line.main import main

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


def test_without_words_it_says_what_caffe_can_do(capsys):
    for words in ([], ["--replace", "none"]):
        with pytest.raises(SystemExit) as caught:
            parse(*words)
        assert caught.value.code == 2
        out, err = capsys.readouterr()
        assert not out and err.startswith("usage: clgraft caffe") and "clgraft caffe: error: the following" in err
        for action in ("train  ", "test  ", "time  ", "device_query  ", "--replace", "clgraft caffe test -model"):
            assert action in err


ECHO = "#!/bin/sh\n# {said}\nfor word; do case $word in *prototxt|*/fd/*) cat ${{word#*=}};; esac; done\n"


@pytest.fixture
def caffe_command(tmp_path, monkeypatch, capfd):
    """A caffe that prints the files that it is called with; return what it prints, and what clgraft does."""
    monkeypatch.chdir(tmp_path)
    binary = tmp_path / "caffe"

    def call(*words, said: str = "Cannot use GPU in CPU-only Caffe: check mode.", **environment):
        binary.write_text(ECHO.format(said=said))
        binary.chmod(0o755)
        code = (
            "import argparse; from clgraft.plugins.caffe import run; parser = argparse.ArgumentParser();"
            "run.add_command(parser.add_subparsers()); options = parser.parse_args(); options.run(options)"
        )
        line = [sys.executable, "-c", code, "caffe", "--binary", str(binary), *words]
        done = subprocess.run(line, capture_output=True, text=True, timeout=120, env={**os.environ, **environment})
        assert done.returncode == 0, done.stderr
        return done.stdout, done.stderr

    return call


@pytest.mark.parametrize("words", [("-solver", "a/s.prototxt"), ("--solver=a/s.prototxt",), ("-solver=a/s.prototxt",)])
@pytest.mark.parametrize("mode", ["GPU", "1"])
def test_a_solver_for_a_gpu_runs_on_a_cpu_where_caffe_has_no_gpu(caffe_command, tmp_path, words, mode):
    text = f'net: "net.prototxt"\nsolver_mode: {mode} # fast\nsnapshot_prefix: "made/by"\n'
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "s.prototxt").write_text(text)
    seen, said = caffe_command("train", *words)
    assert seen == text.replace(mode, "CPU")
    said_of = "got solver_mode: GPU in a/s.prototxt, but this Caffe was built without a GPU"
    assert f"clgraft: {said_of}; this run takes a copy that says CPU\n" in said
    assert (tmp_path / "a" / "s.prototxt").read_text() == text and os.listdir(tmp_path / "a") == ["s.prototxt"]
    seen, said = caffe_command("train", *words, said="nothing about it")
    assert seen == text and "solver_mode" not in said


@pytest.mark.parametrize(
    "prefix, made", [("", 'snapshot_prefix: "a/s"'), ('snapshot_prefix: "a"', 'snapshot_prefix: "a/s"')]
)
def test_the_copy_of_a_solver_keeps_the_names_of_its_snapshots(caffe_command, tmp_path, prefix, made):
    """Caffe names them after the solver's file if the solver names a folder or nothing."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "s.prototxt").write_text(f"base_lr: 0.1 solver_mode: GPU {prefix}")
    seen, _ = caffe_command("train", "-solver", "a/s.prototxt")
    assert "solver_mode: CPU" in seen and made in seen and seen.count("snapshot_prefix") == 1


def test_solvers_that_stay_as_they_are(caffe_command, tmp_path):
    for text in ("base_lr: 0.1 solver_mode: CPU", "base_lr: 0.1", "solver_mode: {", "layer { name: 'GPU' }"):
        (tmp_path / "s.prototxt").write_text(text)
        seen, said = caffe_command("train", "-solver", "s.prototxt")
        assert seen == text and "solver_mode" not in said


@pytest.mark.parametrize("kind", ["OclConvolution", "OclReLU"])
def test_types_that_caffe_will_not_know_are_hinted_at(caffe_command, tmp_path, kind):
    (tmp_path / "net.prototxt").write_text(f'layer {{ name: "a" type: "{kind}" bottom: "x" top: "y" }}')
    (tmp_path / "s.prototxt").write_text('train_net: "net.prototxt" base_lr: 0.1')
    for words in (("time", "-model", "net.prototxt"), ("train", "-solver", "s.prototxt")):
        _, said = caffe_command(*words)
        assert f"clgraft: net.prototxt names the type {kind}, which only C++ layers have" in said
    (tmp_path / "net.prototxt").write_text('layer { name: "a" type: "Convolution" bottom: "x" top: "y" }')
    assert "names the type" not in caffe_command("time", "-model", "net.prototxt")[1]


def test_the_binary_takes_the_place_of_clgraft(tmp_path, monkeypatch):
    """Its output and status are caffe's own."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a b.prototxt").write_text("base_lr: 0.1")
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


@pytest.mark.parametrize(
    ("words", "flag", "name", "near"),
    [
        (["train", "-solver", "solvr.prototxt"], "solver", "solvr.prototxt", "; nearest: solver.prototxt"),
        (["test", "--model=nowhere/net.prototxt"], "model", "nowhere/net.prototxt", ""),
        (["train", "-solver", "solver.prototxt", "-weights", "a.caffemodel,b.caffe"], "weights", "b.caffe", ""),
        (["train", "-solver", "solver.prototxt", "-snapshot", "folder"], "snapshot", "folder", ""),
    ],
)
def test_a_missing_file_is_named_before_caffe_starts(tmp_path, monkeypatch, capfd, words, flag, name, near):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    for each in ("solver.prototxt", "a.caffemodel"):
        (tmp_path / each).write_text("base_lr: 0.1")
    (tmp_path / "caffe").write_text("#!/bin/sh\necho started\n")
    (tmp_path / "caffe").chmod(0o755)
    assert main(["caffe", "--binary", "caffe", *words]) == 2
    out, err = capfd.readouterr()
    assert out == "" and err.startswith(f"clgraft: [caffe] got {name}, which ")
    assert f"; expected the file of -{flag}{near}" in err


def test_a_gpu_that_caffe_was_built_without_is_refused(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "caffe").write_text("#!/bin/sh\n# Cannot use GPU in CPU-only Caffe: check mode.\necho started\n")
    (tmp_path / "caffe").chmod(0o755)
    (tmp_path / "net.prototxt").write_text('name: "net"')
    assert main(["caffe", "--binary", "caffe", "time", "-model", "net.prototxt", "-gpu", "0"]) == 1
    out, err = capfd.readouterr()
    assert out == "" and "[caffe] got -gpu 0, but this Caffe was built without a GPU; expected no -gpu" in err
