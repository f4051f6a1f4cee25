"""The floor of a whole net that `clgraft bench` prints is the sum over the problems that say they ran."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from clgraft import core
from clgraft.core.planning.floor import Peaks, floor

GRAPH = "graph of "  # begins the text of a graph
NETS = {
    "mxnet": """
from clgraft.plugins.mxnet import bench_nets
from mxnet.gluon import nn

def small(name, classes):
    net = nn.HybridSequential()
    net.add(nn.Conv2D(8, 3, use_bias=False), nn.BatchNorm(), nn.Activation("relu"), nn.Conv2D(8, 1, strides=2))
    net.add(nn.MaxPool2D(), nn.Dense(classes))
    return net

bench_nets.vision.get_model = small
bench_nets.PIXELS, bench_nets.CLASSES = 20, 7
""",
    "caffe": """
from functools import partial
from clgraft.plugins.caffe import bench_nets

bench_nets.NETS["resnet18"] = partial(bench_nets.NETS["resnet18"], pixels=32)
""",
}
MEASURE = """
import json
import os
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from clgraft import core
from clgraft.plugins.command_line import events
from clgraft.plugins.command_line.bench import floors, peaks

peaks.take(peaks.Peaks(1e11, 1e10))
of, ran = floors.of, []

def problems():
    lines = Path(os.environ["CLGRAFT_VERBOSE_FILE"]).read_text().splitlines()
    return [event.problem for event in events.read(lines) if event.kind == "run"]

def inside():
    runs = Counter()
    for text, _, count in core.context().graph_runs():
        runs[text] += count
    return runs

def watched(call):
    before, before_inside = len(problems()), inside()
    found = of(call)
    ran.append([problems()[before:], [*(inside() - before_inside).elements()]])
    return found

floors.of = watched
rows = [asdict(row) for row in bench_nets.measure(["resnet18"], [2], 1e-3, 2)]
print(json.dumps([rows, ran]))
"""


MIXED = """
rows = [asdict(row) for row in bench_nets.measure(["resnet18"], [2], 1e-3, 2)]
print(json.dumps(rows))
"""


def test_mxnet_infers_in_bfloat16_too_where_we_do() -> None:
    if importlib.util.find_spec("mxnet") is None:
        pytest.skip("mxnet is not installed for this Python")
    code = NETS["mxnet"] + MEASURE.split("floors.of = watched")[0] + MIXED
    environment = {**os.environ, "CLGRAFT_VERBOSE": "", "CLGRAFT_PRECISION": "bfloat16"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    inference, training = json.loads(done.stdout.splitlines()[-1])
    assert {*inference["ways"]} == {"native", "amp"} and training["ways"] == {}
    assert inference["native"] == inference["ways"][inference["layout"]] == min(inference["ways"].values())


@pytest.mark.parametrize("framework", NETS)
def test_the_floor_is_the_sum_over_the_problems_that_ran(framework: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed for this Python")
    done = subprocess.run(
        [sys.executable, "-c", NETS[framework] + MEASURE],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "CLGRAFT_VERBOSE": "run", "CLGRAFT_VERBOSE_FILE": str(tmp_path / "lines.txt")},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    rows, ran = json.loads(done.stdout.splitlines()[-1])
    assert [row["direction"] for row in rows] == ["inference", "training"]
    assert [row["updated"] > 0 for row in rows] == [False, framework == "mxnet"]
    found = iter(ran)
    for row in rows:
        assert row["floor"] == pytest.approx(_sum(*next(found)), rel=1e-9)
        for side in ("regions", *(side for side in ("frozen", "updated") if row[side])):
            assert any(text.startswith(GRAPH) for text in next(found)[0])
            if side == "updated":  # the same graphs, and the update
                assert row["updated_floor"] > row["regions_floor"]
            else:
                assert 0 < row[f"{side}_floor"] <= row["floor"]  # the values inside of a region do not move
    assert next(found, None) is None


def _sum(problems: list[str], inside: list[str]) -> float:
    """Return the floor of what ran in the second of two runs, by itself and inside of operators' graphs."""
    first, second = problems[: len(problems) // 2], problems[len(problems) // 2 :]
    assert sorted(first) == sorted(second) and second
    alone = [text for text in second if not text.startswith(GRAPH)]
    of_graphs = sorted(inside)
    assert of_graphs[::2] == of_graphs[1::2] and bool(of_graphs) == (len(alone) < len(second))
    texts = [*alone, *of_graphs[::2]]
    return floor([work for text in texts for work in core.context().plan(core.parse(text)).work], Peaks(1e11, 1e10))
