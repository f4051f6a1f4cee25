"""Generated nets with several losses and recurrent layers: total losses, outputs and gradients are those of Caffe."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("caffe")

from clgraft.caffe_layers.library import process
from tests.caffe_layers.generated_nets import WAYS, Net, compare
from tests.caffe_layers.test_cpp_layers import needs_library

PYTHON, CPP = WAYS[:2], WAYS[2:]
SEEDS = (range(10), *(range(n, n + 20) for n in range(10, 110, 20)))  # the first are run every day (tests/everyday.py)

by_seeds = pytest.mark.parametrize("seeds", SEEDS, ids=lambda seeds: f"{seeds.start}-{seeds.stop}")


@pytest.mark.parametrize("way", PYTHON)
@by_seeds
def test_python_layers_compute_the_same(seeds, way):
    results = [compare(seed, way) for seed in seeds]
    assert [line for found, _ in results for line in found] == []
    assert any(hidden for _, hidden in results) == ("regions" in way)


@needs_library
@by_seeds
def test_cpp_layers_compute_the_same(seeds):
    """In a process of its own, into which the library is preloaded."""
    words = [sys.executable, "-m", "tests.caffe_layers.generated_nets", str(seeds.start), str(len(seeds)), *CPP]
    environment = {**os.environ, "LD_PRELOAD": str(process.find())}
    done = subprocess.run(words, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split("\n")[:-1] == [
        f"{way}: {'blobs' if 'regions' in way else 'no blob'} inside of regions" for way in CPP
    ]


def test_the_first_nets_hold_what_they_are_for():
    nets = [Net(seed) for seed in SEEDS[0]]
    text = "".join(net.text for net in nets)
    assert sum(net.losses > 1 for net in nets) > 7
    for word in ("loss_weight: 0 ", "loss_weight: -0.75", '"LSTM"', '"RNN"', 'param { name: "w" }', "HingeLoss"):
        assert word in text, word
    losses = [line for line in text.splitlines() if "Loss" in line]
    assert any("top:" not in line for line in losses) and any("loss_weight" not in line for line in losses)
