"""``CLGRAFT_VERBOSE``: a line for every plan and run, from Python, MXNet and C; bench, tune and profile read them."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import subprocess
import sys

import pytest

from clgraft.core import parse
from clgraft.plugins.command_line import events, problem_text
from clgraft.plugins.command_line.main import main
from clgraft.plugins.command_line.profile import summary
from tests.plugins.verbose_graphs import expect_commands, expect_problems

POOL = "pool forward max n1 c2 ih4 iw4 kh2 kw2"
RUN = f"""
import numpy as np
from clgraft import core
plan = core.context().plan(core.parse({POOL!r}))
x, y = np.ones((1, 2, 4, 4), np.float32), np.empty((1, 2, 3, 3), np.float32)
for _ in range(3):
    plan.run(x=x, y=y)
print("done")
"""
MXNET = """
import clgraft.mxnet_ops
import mxnet as mx
x = mx.nd.ones((1, 2, 4, 4))
y = mx.nd.Custom(x, op_type="ocl_pooling", kernel="(2, 2)", pool_type="max")
y.wait_to_read()
"""


def lines_of(program: str, **environment: str) -> tuple[list[events.Event], str]:
    """Run a program; return the events on its stderr, and what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return list(events.read(done.stderr.splitlines())), done.stdout


@pytest.mark.parametrize(
    "words, kinds",
    [
        ("plan,run", ["plan", "run", "run", "run"]),
        ("run", ["run", "run", "run"]),
        ("plan", ["plan"]),
        ("start", []),
        ("", []),
    ],
)
def test_a_line_for_every_plan_and_run(words, kinds):
    found, printed = lines_of(RUN, CLGRAFT_VERBOSE=words)
    assert [event.kind for event in found] == kinds
    assert printed == "done\n"  # the lines go to stderr
    for event in found:
        assert event.problem == POOL and event.implementation and event.start is None
        assert 0 <= event.seconds < 100


def test_start_and_thread_are_added(tmp_path):
    file = tmp_path / "lines"
    file.write_text("what was there\n")
    found, _ = lines_of(RUN, CLGRAFT_VERBOSE="run,start", CLGRAFT_VERBOSE_FILE=str(file))
    assert not found
    assert file.read_text().startswith("what was there\n")
    runs = list(events.read(file.read_text().splitlines()))
    assert len(runs) == 3 and len({event.thread for event in runs}) == 1
    for before, after in zip(runs, runs[1:]):
        assert before.start + before.seconds <= after.start + 2e-6


@pytest.mark.skipif(importlib.util.find_spec("mxnet") is None, reason="MXNet is not installed for this Python")
def test_lines_come_from_runs_inside_mxnet():
    found, _ = lines_of(MXNET, CLGRAFT_VERBOSE="run")
    assert [(event.kind, event.problem) for event in found] == [("run", POOL)]


def test_a_file_that_cannot_be_written_is_said(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "CLGRAFT_VERBOSE": "run", "CLGRAFT_VERBOSE_FILE": str(tmp_path / "no" / "folder")},
    )
    assert "cannot be written to: stderr is used" in done.stderr
    assert len(list(events.read(done.stderr.splitlines()))) == 3


@pytest.mark.parametrize("end", [",0.412", ",12345.000", ",0.412,17.250,99"])
@pytest.mark.parametrize(
    "problem",
    [
        POOL,
        "pointwise x0[3,7,11] : y0 = max(x0, 1.5)",
        "slice forward x[2,3,9,11] y[2,3,7,8] at[0,0,1,2]",
        "concat forward outer[3] extents[4,1,7] inner[49]",
    ],
)
def test_any_problem_comes_back_from_its_line(problem, end):
    text = str(parse(problem))
    event = events.parse(f"clgraft,run,direct,{text}{end}\n")
    assert event.problem == text and event.implementation == "direct"
    assert event.seconds == pytest.approx(float(end.split(",")[1]) / 1e3)
    assert event.thread == (99 if end.count(",") == 3 else 0)


@pytest.mark.parametrize(
    "line", ["", "clgraft,walk,direct,pool,0.412", "clgraft,run,direct,pool", "x clgraft,run,a,b,0.100"]
)
def test_other_lines_are_no_events(line):
    assert events.parse(line) is None


def test_lines_are_read_among_what_a_program_printed(tmp_path, monkeypatch):
    text = f"epoch 1\nclgraft,run,planes,{POOL},0.412\nclgraft,run,planes,{POOL},0.400\nloss: 3\n"
    file = tmp_path / "stderr.txt"
    file.write_text(text + "clgraft,run,graph,graph of 2 problems -> y,0.500\n")
    assert problem_text.read(str(file)) == [POOL]
    assert problem_text.read(f"clgraft,plan,planes,{POOL},0.412") == [POOL]
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    assert problem_text.read("-") == [POOL]
    assert problem_text.read("resnet50") is None


def test_tune_takes_a_line(capfd, monkeypatch, tmp_path):
    monkeypatch.setenv("CLGRAFT_CACHE", str(tmp_path))
    assert main(["tune", f"clgraft,run,planes,{POOL},0.412", "--seconds", "0.01", "--json"]) in (0, 3)
    assert [row["problem"] for row in json.loads(capfd.readouterr().out)["problems"]] == [POOL]


def test_rows_of_a_profile_leave_the_first_pass_out():
    def run(problem: str, seconds: float) -> events.Event:
        return events.Event("run", "direct", problem, seconds)

    # two runs of a in each of three passes, one of b
    times = [("a", 9), ("a", 9), ("b", 9), ("a", 1), ("a", 2), ("b", 4), ("a", 3), ("a", 2), ("b", 2)]
    found = summary.rows([run(problem, seconds) for problem, seconds in times], passes=2)
    assert [(row.problem, row.calls, row.seconds) for row in found] == [("a", 2, 4.0), ("b", 1, 3.0)]
    assert [row.share for row in found] == [pytest.approx(4 / 7), pytest.approx(3 / 7)]
    assert summary.rows([], passes=2) == []


def test_profile_of_problems_and_its_trace(tmp_path, capfd):
    trace = tmp_path / "trace.json"
    softmax = "softmax forward n9 c37"
    assert main(["profile", POOL, softmax, "--passes", "2", "--trace", str(trace)]) == 0
    printed = capfd.readouterr().out
    assert POOL in printed and softmax in printed and "one pass: " in printed and "2 plans" in printed
    rows = json.loads(trace.read_text())["traceEvents"]
    complete = [row for row in rows if row["ph"] == "X"]
    assert [row["name"] for row in complete if row["cat"] == "run"] == 3 * [POOL] + 3 * [softmax]
    assert [row["name"] for row in complete if row["cat"] == "plan"] == [f"plan {POOL}", f"plan {softmax}"]
    assert min(row["ts"] for row in complete) == 0 and all(row["dur"] >= 0 and row["tid"] for row in complete)
    assert main(["profile", POOL, "--json", "--passes", "1"]) == 0
    record = json.loads(capfd.readouterr().out)
    assert [row["problem"] for row in record["rows"]] == [POOL] and record["rows"][0]["share"] == 1.0
    assert record["plans"] == 1


@pytest.mark.parametrize(
    ("words", "expected"),
    [(["nothing"], "got 'nothing', expected a problem of"), ([POOL.replace("kh2", "kh9")], "[pool]")],
)
def test_what_cannot_be_profiled_says_why(words, expected, capfd):
    assert main(["profile", *words]) == 1
    assert expected in capfd.readouterr().err


def test_a_pass_with_regions_is_what_their_calls_take_and_not_the_sum_of_their_problems():
    def run(implementation: str, problem: str, seconds: float, start: float) -> events.Event:
        return events.Event("run", implementation, problem, seconds, start)

    found = [run("graph", "graph of 2 problems -> y", each, n) for n, each in enumerate((9, 1, 2, 3))]
    found += [run("direct", "b", 0.5, 0.1 + n) for n in range(4)]  # outside of the region
    found += [run("graph", "graph of 1 problem -> folded", 7, 0)]  # once
    found += [run("direct", "a", each, 10 + n) for n, each in enumerate((5, 2, 2, 2))]
    rows = summary.rows(found, passes=3)
    assert [(row.problem, row.seconds) for row in rows] == [("a", 2), ("b", 0.5)]
    assert summary.regions(found, passes=3) == summary.Pass(1, 2)
    assert summary.model(found, 3, alone=10) == summary.Pass(2, 2.5)
    lines = summary.sums(rows, found, 3, alone=10)
    assert "the rows: 2500.000 ms in 2 calls, where problems of regions run one by one and alone" in lines
    assert "one pass: 2500.000 ms in 2 calls, of it regions 2000.000 ms in 1" in lines
    assert "times: medians of 3 passes after one that warms up" in lines
    record = summary.as_record(rows, found, 3, alone=10)
    assert record["region_seconds"] == 2 and record["pass_seconds"] == 2.5
    assert summary.regions(found[4:8], passes=3) == summary.Pass(0, 0)


def test_profile_of_a_symbol_with_regions(tmp_path, capfd):
    mxnet = pytest.importorskip("mxnet")
    net = mxnet.sym.Convolution(mxnet.sym.var("data"), kernel=(3, 3), num_filter=3, pad=(1, 1), no_bias=True, name="c")
    net = mxnet.sym.Convolution(net, kernel=(3, 3), num_filter=3, pad=(1, 1), no_bias=True, name="d")
    path = tmp_path / "net-symbol.json"
    mxnet.sym.softmax(net).save(str(path))
    command = ["profile", str(path), "--shape", "data=2,3,9,11", "--passes", "2", "--json", "--regions"]
    assert main(command) == 0
    record = json.loads(capfd.readouterr().out)
    rows = {row["problem"]: row for row in record["rows"]}
    twice = [row for text, row in rows.items() if text.startswith("conv")]
    assert len(twice) == 3 and all(row["calls"] == 2 for row in twice)  # three directions
    assert record["region_calls"] == 2 and record["region_seconds"] > 0  # forward and backward


def test_profile_of_a_symbol(tmp_path, capfd):
    mxnet = pytest.importorskip("mxnet")
    net = mxnet.sym.Convolution(mxnet.sym.var("data"), kernel=(3, 3), num_filter=4, name="c")
    for _ in range(2):
        net = mxnet.sym.Convolution(net, kernel=(3, 3), num_filter=4, pad=(1, 1), no_bias=True)
    path = tmp_path / "net-symbol.json"
    net.save(str(path))
    assert main(["profile", str(path), "--shape", "data=2,3,9,11", "--passes", "2", "--json"]) == 0
    rows = {row["problem"]: row for row in json.loads(capfd.readouterr().out)["rows"]}
    twice = [row for text, row in rows.items() if " ic4 " in text]
    assert len(twice) == 3 and all(row["calls"] == 2 for row in twice)  # three directions


MXNET_REGIONS = """
import mxnet as mx
import clgraft.mxnet_ops
net = mx.gluon.nn.HybridSequential()
net.add(mx.gluon.nn.Conv2D(4, 3, in_channels=2), mx.gluon.nn.MaxPool2D(), mx.gluon.nn.Dense(3, in_units=36))
net.initialize()
clgraft.mxnet_ops.swap_block(net)
net.hybridize()
net(mx.nd.ones((2, 2, 8, 8))).wait_to_read()
"""


@pytest.mark.skipif(importlib.util.find_spec("mxnet") is None, reason="MXNet is not installed for this Python")
def test_problems_of_regions_reach_tune_and_bench(tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("CLGRAFT_CACHE", str(tmp_path))
    found = expect_problems(MXNET_REGIONS, {"conv", "pool", "dense"}, tmp_path)
    expect_commands(found, tmp_path, capfd)
