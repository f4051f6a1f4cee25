"""Peers of `clgraft bench` run with the faster number of threads, each in a process of its own, and say so."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from clgraft.plugins import registry
from clgraft.plugins.command_line.bench import peer_process, peer_threads, peers
from clgraft.plugins.command_line.bench.peer_threads import ALL, DEFAULT, Trial, choose
from clgraft.plugins.command_line.bench.results import Results
from clgraft.plugins.command_line.main import main
from clgraft.plugins.plugin import Peer, Plugin, PluginError

# A peer whose default is one thread. It is faster or slower with all of them, as the environment says.

OPERATORS = """
import os, time
from dataclasses import replace
from clgraft.plugins.command_line.bench import numpy_operators, peer_threads

peer_threads.SECONDS = 0.1

MODE = "slowly"
COUNT = int(os.environ.get("FAKE_THREADS", "1"))

def threads():
    return COUNT

def sides(case):
    found = numpy_operators.sides(case)
    native = found["native"]
    def forward():
        time.sleep(0.02 / COUNT if os.environ["FAKE_GAINS"] == "yes" else 0.02 * COUNT)  # its results are there already
    return {**found, "native": replace(native, forward=forward)}
"""
PLUGIN = """
from clgraft.plugins.plugin import Peer, Plugin

class Fake(Plugin):
    name = "fake"
    def peers(self):
        return [Peer("fake", "fake_framework", "fake_operators", thread_variables=("FAKE_THREADS",))]
"""
ENTRY = "[clgraft.plugins]\nfake = fake_plugin:PLUGIN\n"
PROCESSORS = 3
PEER = Peer("fake", "fake", "fake", thread_variables=("FAKE_THREADS", "OTHER_THREADS"))


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """A distribution with a peer, which child processes find too."""
    (tmp_path / "fake_framework.py").write_text("__version__ = '7'\n")
    (tmp_path / "fake_operators.py").write_text(OPERATORS)
    (tmp_path / "fake_plugin.py").write_text(PLUGIN + "\nPLUGIN = Fake()\n")
    folder = tmp_path / "fake-1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: fake\nVersion: 1\n")
    (folder / "entry_points.txt").write_text(ENTRY)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")])))
    monkeypatch.syspath_prepend(str(tmp_path))

    class Fake(Plugin):
        name = "fake"

        def peers(self):
            return [Peer("fake", "fake_framework", "fake_operators", thread_variables=("FAKE_THREADS",))]

    monkeypatch.setattr(registry, "_registered", dict(registry._registered))
    registry.plugins()
    registry.register(Fake())
    monkeypatch.setattr(peer_threads, "processors", lambda: PROCESSORS)
    for name in ("FAKE_THREADS", "FAKE_GAINS"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("gains, chosen, count", [("yes", ALL, PROCESSORS), ("no", DEFAULT, 1)])
def test_the_faster_number_of_threads_is_taken_and_said(gains, chosen, count, fake, tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("FAKE_GAINS", gains)
    figures, table = tmp_path / "figures.json", tmp_path / "table.md"
    words = ["bench", "elements", "--only", "tanh-64-56", "--batch", "1", "--peers", "fake", "--seconds", "0.01"]
    assert main([*words, "--json", str(figures), "--table", str(table)]) == 0
    other = f"{DEFAULT} 1" if chosen == ALL else f"{ALL} {PROCESSORS}"
    said = f"{count} thread{'s' * (count > 1)} ({chosen}; slower: {other})"
    printed = capfd.readouterr().out
    assert f"fake 7: {said}\n" in printed and f"fake: {said}, slowly" in printed
    run = Results.read(figures)
    kept = run.peer_threads["fake"]
    assert (kept.count, kept.chosen) == (count, chosen)
    assert {name: trial.threads for name, trial in kept.tried.items()} == {DEFAULT: 1, ALL: PROCESSORS}
    assert min(kept.tried, key=lambda name: kept.tried[name].seconds) == chosen
    assert run.to_json() == figures.read_text()
    assert f"fake 7: {said} |" in table.read_text() and f"fake: {said}, slowly." in table.read_text()
    # one thread takes 20 ms; the faster of both numbers, not the first one that was tried, is in the row
    (row,) = run.rows
    assert row.native >= (0.02 / PROCESSORS if gains == "yes" else 0.02)


def test_what_the_user_has_set_stays(fake, tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("FAKE_GAINS", "yes")
    monkeypatch.setenv("FAKE_THREADS", "2")
    figures = tmp_path / "figures.json"
    words = ["bench", "elements", "--only", "tanh-64-56", "--batch", "1", "--peers", "fake", "--seconds", "0.01"]
    assert main([*words, "--json", str(figures)]) == 0
    assert "fake 7: 2 threads (FAKE_THREADS=2)\n" in capfd.readouterr().out
    assert Results.read(figures).peer_threads["fake"].tried == {}


def test_choice(monkeypatch):
    monkeypatch.setattr(peer_threads, "processors", lambda: 4)
    asked = []

    def trial(times):
        def run(more):
            asked.append(more)
            return times[bool(more)]

        return run

    every = {"FAKE_THREADS": "4", "OTHER_THREADS": "4"}
    assert choose(PEER, {}, trial([Trial(2, 2.0), Trial(4, 1.0)])).environment == every
    assert choose(PEER, {}, trial([Trial(2, 1.0), Trial(4, 2.0)])).environment == {}
    assert asked == [{}, every] * 4  # what is not decided is tried three times
    asked.clear()
    times = [Trial(2, 2.0), Trial(4, 2.1), Trial(2, 2.0), Trial(4, 1.0)]  # another program was in the way once
    assert choose(PEER, {}, lambda more: times.pop(0)).chosen == ALL and not times
    found = choose(PEER, {}, trial([Trial(4, 1.0)]))  # the default is all processors
    assert (found.environment, found.chosen, asked) == ({}, DEFAULT, [{}])
    found = choose(PEER, {"OTHER_THREADS": "3"}, trial([]))
    assert (found.environment, found.chosen) == ({}, "OTHER_THREADS=3")
    monkeypatch.setattr(peer_threads, "processors", lambda: 1)
    assert choose(PEER, {}, trial([])).chosen == DEFAULT


@pytest.mark.parametrize("count", [1, 2])
def test_threads_that_take_part_are_counted(count):
    """A thread that sleeps or does little is none of them, whatever other programs do meanwhile."""
    end = threading.Event()
    sleeper = threading.Thread(target=end.wait)
    sleeper.start()

    def burn():
        until = time.thread_time() + 0.05
        while time.thread_time() < until:
            pass

    workers = [threading.Event() for _ in range(count - 1)]
    done = [threading.Event() for _ in workers]

    def work(begin, finished):
        while begin.wait() and not end.is_set():
            begin.clear()
            burn()
            finished.set()

    pool = [threading.Thread(target=work, args=pair) for pair in zip(workers, done)]
    for thread in pool:
        thread.start()

    def call():
        for event in workers:
            event.set()
        burn()
        for event in done:
            event.wait()
            event.clear()

    try:
        assert peer_threads.busy(call, 0.3) == count
    finally:
        end.set()
        for event in workers:
            event.set()
        for thread in (sleeper, *pool):
            thread.join()


@pytest.mark.parametrize("name", [name for name in peers.available() if name != "numpy"])
def test_an_installed_peer_takes_the_number_that_it_gets(name):
    """Read back in a process with that number, which a wrong variable would not change."""
    known = peers.known()[name]
    assert known.thread_variables
    environment = {k: v for k, v in registry.environment().items() if k not in known.thread_variables}
    for count in {1, min(2, peer_threads.processors())}:
        job = peer_process.job(name, [], [], 0.1)
        given = {**environment, **dict.fromkeys(known.thread_variables, str(count))}
        first, done = peer_process.messages(job, given)
        assert first["peer"]["threads"] == count and "done" in done


def test_a_process_that_ends_is_reported(monkeypatch):
    code = "import os, sys; sys.stdin.read(); os._exit(7)"
    monkeypatch.setattr(peer_process, "COMMAND", [sys.executable, "-c", code])
    with pytest.raises(PluginError, match="got exit status 7 of the process of numpy"):
        list(peer_process.messages(peer_process.job("numpy", [], [], 0.1), os.environ))


def test_a_program_is_restarted_with_the_faster_number(fake, tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_GAINS", "yes")
    program = tmp_path / "program.py"
    program.write_text(
        "import json, os, sys\n"
        "from clgraft.plugins.command_line.bench import peer_process, peer_threads\n"
        f"peer_threads.processors = lambda: {PROCESSORS}\n"
        "threads = peer_process.restarted('fake')\n"
        "print(json.dumps([str(threads), os.environ['FAKE_THREADS'], sys.argv[1:]]))\n"
    )
    command = [sys.executable, str(program), "a", "b"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    expected = [f"{PROCESSORS} threads ({ALL}; slower: {DEFAULT} 1)", str(PROCESSORS), ["a", "b"]]
    assert json.loads(done.stdout) == expected


class ChosenError(Exception):
    """Raised in place of trying a peer's numbers of threads."""


@pytest.mark.parametrize(
    ("program", "peer"),
    [
        *(("adapter_overhead --framework=mxnet", "mxnet"), ("adapter_overhead --framework=caffe", "caffe")),
        *(("regions", "mxnet"), ("regions --native --optimizer=ocl_sgd", "mxnet"), ("optimizers", "mxnet")),
        *(("cores resnet18_v1", "mxnet"), ("graph_nets", "torch"), ("caffe_regions --native", "caffe")),
        *(("caffe_time", "caffe"), ("onnx_nets --peers=onnxruntime", "onnxruntime")),
        ("onnx_nets --peers=openvino", "openvino"),
    ],
)
def test_every_benchmark_with_a_peer_chooses_its_threads(program, peer, monkeypatch):
    """The programs start, and ask the one function for the peer's best number of threads before they measure."""
    if program.startswith(("caffe_time", "onnx_nets")):  # which import it at once
        pytest.importorskip("onnx" if program.startswith("onnx") else "caffe")
    folder = Path(__file__).resolve().parents[2] / "benchmarks"
    name, *arguments = program.split()

    def best(asked, environment):
        raise ChosenError(asked)

    monkeypatch.setattr(peer_process, "best", best)
    monkeypatch.delenv(peer_process.CHOSEN, raising=False)
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *arguments])
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "timing", raising=False)
    try:
        with pytest.raises(ChosenError, match=peer):
            runpy.run_path(str(folder / f"{name}.py"), run_name="__main__")
    finally:
        sys.modules.pop("timing", None)  # it holds this `best`
