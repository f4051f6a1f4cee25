"""Plugins: ours, registered ones, and those of other distributions."""

from __future__ import annotations

import argparse
import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from clgraft.plugins import Plugin, SwapRequest, SwapResult, find, plugins, register, registry
from clgraft.plugins.command_line.bench import peers

ROOT = Path(__file__).resolve().parent.parent.parent
PAPER = """
from clgraft.plugins import Peer, Plugin, SwapResult, Task

class Paper(Plugin):
    name = "paper"
    models = "a sheet"
    examples = ("clgraft paper fold",)
    environment = {"PAPER_SIZE": "A4"}

    def recognises(self, path):
        return path.suffix == ".paper"

    def swap(self, request):
        return SwapResult(f"folded {request.source}", 1)

    def add_check_arguments(self, parser):
        parser.add_argument("--corners", type=int, default=4)

    def check(self, model, options):
        return Task("paper", {"corners": options.corners, "repeats": options.repeats})

    def problems(self, model, shapes, training):
        return Task("paper", {"size": shapes["sheet"][0], "training": training})

    def peers(self):
        return [Peer("scissors", "json", "paper")]

    def add_commands(self, commands):
        parser = commands.add_parser("paper", help="fold")
        parser.add_argument("what")
        parser.set_defaults(run=lambda options: print("made a", options.what) or 0)

def rows(corners, repeats):
    import os
    from clgraft.plugins.command_line.check.runner import CheckRow
    for corner in range(corners):
        yield CheckRow(os.environ["PAPER_SIZE"], f"corner {corner}", 0.0, 1.0)

def problems(size, training):
    import clgraft.core as core
    return [core.parse(f"pool max n1 c1 ih{size} iw4 kh4 kw4")]

PLUGIN = Paper()
BROKEN = 3
"""


@pytest.fixture
def paper(tmp_path):
    """A distribution with a plugin, a broken one and a missing one; returns a runner of commands that see it."""
    (tmp_path / "paper.py").write_text(PAPER)
    (tmp_path / "sheet.paper").write_text("")
    info = tmp_path / "paper-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: paper\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[clgraft.plugins]\npaper = paper:PLUGIN\nnumber = paper:BROKEN\nmissing = no_such_module:PLUGIN\n"
    )
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))

    def run(*words):
        return subprocess.run(
            [sys.executable, "-m", "clgraft.plugins.command_line", *words],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": path},
            check=False,
        )

    return run


def test_a_distributions_plugin_takes_part_in_every_command(paper):
    done = paper("swap", "sheet.paper")
    assert done.returncode == 0 and "folded sheet.paper" in done.stderr
    assert paper("paper", "crane").stdout == "made a crane\n"
    checked = paper("check", "sheet.paper", "--corners", "3", "--repeats", "1")
    assert checked.returncode == 0, checked.stderr
    assert "A4: corner 2" in checked.stdout and "3 of 3 rows pass" in checked.stdout
    tuned = paper("tune", "sheet.paper", "--shape", "sheet=4", "--seconds", "0.01")
    assert "pool forward max n1 c1 ih4 iw4 kh4 kw4" in tuned.stdout, tuned.stderr
    shown = paper("--help").stdout
    assert "clgraft paper fold" in shown and "scissors" in paper("bench", "--help").stdout


def test_a_plugin_that_cannot_be_loaded_is_left_out_with_a_warning(paper):
    done = paper("swap", "x.unknown")
    assert done.returncode == 1
    assert "paper: a sheet" in done.stderr
    assert "plugin missing (no_such_module:PLUGIN) cannot be loaded: ModuleNotFoundError" in done.stderr
    assert "plugin number (paper:BROKEN) is left out: got int" in done.stderr
    assert "Traceback" not in done.stderr


def test_ours_are_found_without_an_installation(monkeypatch):
    monkeypatch.setattr(registry, "_registered", {})
    monkeypatch.setattr(registry, "_loaded", [])
    monkeypatch.setattr(registry, "_entry_points", lambda: ())
    assert [plugin.name for plugin in plugins()] == ["caffe", "models", "mxnet", "onnx", "torch"]
    assert find(Path("a/b.prototxt")).name == "caffe"
    assert find(Path("a-symbol.json")).name == "mxnet"


def test_ours_are_entry_points():
    text = (ROOT / "pyproject.toml").read_text()
    table = text.split('[project.entry-points."clgraft.plugins"]\n')[1].split("\n\n")[0]
    declared = dict(line.replace('"', "").split(" = ") for line in table.splitlines())
    for name, value in declared.items():
        module, attribute = value.split(":")
        plugin = getattr(importlib.import_module(module), attribute)
        assert plugin.name == name and plugin in plugins()
    assert len(declared) == sum(type(plugin).__module__.startswith("clgraft.plugins.") for plugin in plugins())


def test_a_registered_plugin(monkeypatch):
    plugins()
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))

    class Paper(Plugin):
        name = "paper"
        models = "a sheet"

        def recognises(self, path):
            return path.suffix == ".paper"

        def swap(self, request):
            return SwapResult(f"folded {request.source}", 1)

    register(Paper())
    assert [plugin.name for plugin in plugins()] == ["caffe", "models", "mxnet", "onnx", "torch", "paper"]
    assert find(Path("x.paper")).swap(SwapRequest(Path("x.paper"))).changed == 1


def test_a_plugin_that_does_nothing_says_so():
    plugin, path = Plugin(), Path("x")
    assert not plugin.recognises(path) and not plugin.peers()
    for call in (
        lambda: plugin.swap(SwapRequest(path)),
        lambda: plugin.check(path, argparse.Namespace()),
        lambda: plugin.problems(path, {}, True),
    ):
        with pytest.raises(registry.PluginError, match="got x, expected a model"):
            call()


def test_nets_that_are_named_can_be_measured():
    for name in peers.available():
        peer = peers.known()[name]
        if peer.nets:
            assert set(importlib.import_module(peer.nets_module).NETS) == set(peer.nets)


def test_the_command_line_names_no_plugin():
    """The command line's code names no plugin; peers and models come from the registry."""
    folder = ROOT / "plugins"
    files = [folder / "registry.py", folder / "plugin.py", *(folder / "command_line").rglob("*.py")]
    for file in files:
        text = file.read_text().lower()
        for plugin in plugins():
            assert f'"{plugin.name}"' not in text and f"plugins.{plugin.name}" not in text, file
