"""The `caffe` command, where there is one: it trains our layers, and an error of ours is seen before it ends."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("caffe")

from clgraft.caffe_layers.swap import swap_file
from tests.caffe_layers.caffe_nets import layer

needs_command = pytest.mark.skipif(not shutil.which("caffe"), reason="this Caffe comes without the caffe command")


RUN = (
    "import argparse; from clgraft.plugins.caffe import run; parser = argparse.ArgumentParser(); "
    "run.add_command(parser.add_subparsers()); options = parser.parse_args(); options.run(options)"
)


def train(folder, parameters: str, ours: bool, command=("env", "GLOG_minloglevel=0", "caffe")):
    """Train a net of DummyData, one convolution and a Euclidean loss for some steps."""
    data = "shape { dim: 4 dim: 3 dim: 6 dim: 6 } data_filler { type: 'gaussian' }"
    (folder / "net.prototxt").write_text(
        f'layer {{ name: "x" type: "DummyData" top: "x" dummy_data_param {{ {data} }} }}\n'
        + layer("Convolution", f"convolution_param {{ {parameters} }}", ours=ours)
        + layer("BatchNorm", ours=ours, name="bn", bottoms=["y"], tops=["y"], frame="param { lr_mult: 0 } " * 3)
        + 'layer { name: "t" type: "DummyData" top: "t" dummy_data_param '
        + "{ shape { dim: 4 dim: 2 dim: 4 dim: 4 } data_filler { value: 0.5 } } }\n"
        + 'layer { name: "loss" type: "EuclideanLoss" bottom: "y" bottom: "t" top: "loss" }\n'
    )
    (folder / "solver.prototxt").write_text(
        f'net: "{folder}/net.prototxt" base_lr: 0.01 lr_policy: "fixed" max_iter: 4 display: 1 random_seed: 3 '
        f'solver_mode: CPU snapshot_after_train: false snapshot_prefix: "{folder}/snap"'
    )
    line = [*command, "train", f"--solver={folder}/solver.prototxt"]
    return subprocess.run(line, capture_output=True, text=True)


@needs_command
def test_trains_as_in_caffe(tmp_path):
    parameters = 'num_output: 2 kernel_size: 3 weight_filler { type: "xavier" }'
    curves = []
    for ours in (False, True):
        done = train(tmp_path, parameters, ours)
        assert done.returncode == 0, done.stderr[-3000:]
        curves.append([float(loss) for loss in re.findall(r"Iteration \d+.*, loss = (\S+)", done.stderr)])
    assert len(curves[0]) >= 4
    assert curves[1] == pytest.approx(curves[0], rel=1e-4)


@needs_command
def test_clgraft_caffe_sets_up_the_environment(tmp_path):
    """From a shell in which nothing was activated or exported."""
    clean = [
        "env",
        "-i",
        "PATH=/usr/bin:/bin",
        "HOME=/nonexistent",
        f"CLGRAFT_DEVICE={os.environ.get('CLGRAFT_DEVICE', '')}",
    ]
    done = train(tmp_path, "num_output: 2 kernel_size: 3", True, [*clean, sys.executable, "-c", RUN, "caffe"])
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Optimization Done" in done.stderr


@needs_command
def test_an_error_is_printed_before_the_command_ends(tmp_path):
    done = train(tmp_path, "num_output: 2 kernel_size: 9", ours=True)
    assert done.returncode != 0
    assert "clgraft: OclConvolution 'op' failed in reshape: [conv] got kernel (9, 9), expected" in done.stderr


@needs_command
def test_a_swapped_solver_trains_tests_and_is_timed_as_in_caffe(tmp_path):
    """Batch statistics in training, the stored ones in testing; the data are the same in every run."""
    h5py = pytest.importorskip("h5py")
    rng = np.random.default_rng(20)
    with h5py.File(str(tmp_path / "data.h5"), "w") as file:
        file["x"] = rng.standard_normal((12, 3, 8, 8)).astype("f4")
        file["label"] = rng.integers(0, 3, 12).astype("f4")
    (tmp_path / "list.txt").write_text(f"{tmp_path}/data.h5\n")
    statistics = "param { lr_mult: 0 } " * 3
    (tmp_path / "net.prototxt").write_text(
        'layer { name: "x" type: "HDF5Data" top: "x" top: "label" '
        f'hdf5_data_param {{ source: "{tmp_path}/list.txt" batch_size: 4 }} }}\n'
        + layer(
            "Convolution",
            'convolution_param { num_output: 4 kernel_size: 3 bias_term: false weight_filler { type: "msra" } }',
            ours=False,
        )
        + layer("BatchNorm", ours=False, name="bn", bottoms=["y"], tops=["y"], frame=statistics)
        + layer("Scale", "scale_param { bias_term: true }", ours=False, name="scale", bottoms=["y"], tops=["y"])
        + layer("ReLU", ours=False, name="relu", bottoms=["y"], tops=["y"])
        + layer(
            "InnerProduct",
            'inner_product_param { num_output: 3 weight_filler { type: "xavier" } }',
            ours=False,
            name="score",
            bottoms=["y"],
            tops=["score"],
        )
        + layer("SoftmaxWithLoss", ours=False, name="loss", bottoms=["score", "label"], tops=["loss"])
    )
    (tmp_path / "native.prototxt").write_text(
        f'net: "{tmp_path}/net.prototxt" base_lr: 0.05 momentum: 0.9 weight_decay: 0.001 '
        f'lr_policy: "fixed" max_iter: 6 display: 1 random_seed: 3 solver_mode: CPU snapshot_prefix: "{tmp_path}/snap" '
        "test_iter: 3 test_interval: 3"
    )
    swap_file(tmp_path / "native.prototxt", tmp_path / "ours.prototxt")

    def command(*words) -> str:
        done = subprocess.run(["env", "GLOG_minloglevel=0", "caffe", *words], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stderr

    seen = []
    for solver, net, snapshot in (("native", "net", "snap"), ("ours", "net_ocl", "snap_ocl")):
        files = [
            f"--model={tmp_path}/{net}.prototxt",
            f"--weights={tmp_path}/{snapshot}_iter_6.caffemodel",
            "--iterations=3",
        ]
        trained = command("train", f"--solver={tmp_path}/{solver}.prototxt")
        tested = command("test", *files)
        timed = command("time", f"--model={tmp_path}/{net}.prototxt", "--iterations=1")
        assert "Average Forward-Backward" in timed
        numbers = [float(loss) for loss in re.findall(r"loss = ([0-9.e+-]+)", trained + tested)]
        assert len(numbers) > 15
        seen.append(numbers)
    assert seen[1] == pytest.approx(seen[0], rel=1e-4)
    assert 'layer: "OclBatchNorm"' in (tmp_path / "net_ocl.prototxt").read_text()
