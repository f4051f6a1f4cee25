"""Ctrl-C at any time, and readers that go away: a line or nothing, the exit status that shells expect, no traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.folders import python_path

POOL = "pool forward max n1 c2 ih4 iw4 kh2 kw2"
NET = "layer { name: 'a' type: 'ReLU' bottom: 'x' top: 'x' }"
# Ctrl-C when a module is imported, in the command itself or in its child
HOOK = """
import os, signal, sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        with open("/proc/self/cmdline", "rb") as words:
            in_child = b"command_line.child" in words.read()
        if name == {module!r} and in_child == {in_child}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
"""


def started(*arguments: str, folder: Path, **more) -> subprocess.Popen:
    """Start the command in a folder, where what it imports first may be."""
    (folder / "net.prototxt").write_text(NET)
    command = [sys.executable, "-m", "clgraft.plugins.command_line", *arguments]
    environment = {**os.environ, "PYTHONPATH": python_path(folder / "first")}
    return subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True, env=environment, **more)


def interrupted(*arguments: str, folder: Path, module: str, in_child: bool) -> tuple[int, str]:
    """Return the exit status and the errors of a command that Ctrl-C reaches when a module is imported."""
    (folder / "first").mkdir()
    (folder / "first" / "sitecustomize.py").write_text(HOOK.format(module=module, in_child=in_child))
    process = started(*arguments, folder=folder, stdout=subprocess.PIPE)
    _, errors = process.communicate(timeout=120)
    return process.returncode, errors


@pytest.mark.parametrize("module", ["argparse", "numpy", "clgraft.plugins.registry"])
@pytest.mark.parametrize("arguments", [["devices"], ["--help"], ["swap", "net.prototxt"], ["tune", POOL]], ids=" ".join)
def test_an_interrupt_during_imports_is_a_line(arguments, module, tmp_path):
    assert interrupted(*arguments, folder=tmp_path, module=module, in_child=False) == (130, "clgraft: interrupted\n")


@pytest.mark.parametrize("command", ["warm", "profile", "tune", "check", "bench"])
def test_an_interrupt_during_imports_of_a_child_is_no_traceback(command, tmp_path):
    more = {"check": [], "bench": [POOL, "--peers", "numpy", "--seconds", "0.01"]}.get(command, [POOL])
    status, errors = interrupted(command, *more, folder=tmp_path, module="clgraft.core", in_child=True)
    assert status == 1 and "-2" in errors and "Traceback" not in errors and "KeyboardInterrupt" not in errors


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["devices"],
        ["devices", "--json"],
        ["cache"],
        ["completion", "bash"],
        ["swap", "net.prototxt"],
        ["check", "--repeats", "1"],
        ["profile", POOL],
        ["warm", POOL],
        ["tune", POOL, "--seconds", "0.01"],
    ],
    ids=" ".join,
)
def test_a_reader_that_has_gone_is_no_failure(arguments, tmp_path, monkeypatch):
    """As with `| head`: status 1 of a check would mean that a row fails."""
    if arguments == ["cache"]:  # one that is listed at once
        monkeypatch.setenv("CLGRAFT_CACHE", str(tmp_path / "cache"))
    reader, writer = os.pipe()
    os.close(reader)
    process = started(*arguments, folder=tmp_path, stdout=writer)
    os.close(writer)
    _, errors = process.communicate(timeout=240)
    # argparse itself says nothing where nobody reads its help
    assert process.returncode == 141 or (arguments == ["--help"] and process.returncode == 0), errors
    assert not [line for line in errors.splitlines() if "Traceback" in line or "Broken" in line or "FAIL" in line]


def test_errors_that_nobody_reads_are_no_failure(tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "clgraft.plugins.command_line", "swap", "missing.prototxt"]
    assert subprocess.run(command, cwd=tmp_path, stderr=writer).returncode == 141
    os.close(writer)


def test_a_child_that_ends_at_once_is_reported(tmp_path, monkeypatch, capfd):
    """Its closed input is not mistaken for a reader that has gone."""
    from clgraft.plugins.command_line.main import main

    (tmp_path / "sitecustomize.py").write_text(
        "import os\nif b'command_line.child' in open('/proc/self/cmdline', 'rb').read(): os._exit(7)\n"
    )
    monkeypatch.setenv("PYTHONPATH", python_path(tmp_path))
    for command in ("tune", "warm", "profile"):
        assert main([command, POOL]) == 1
        assert "status 7" in capfd.readouterr().err
