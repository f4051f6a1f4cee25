"""The `caffe` command, where there is one: it trains our layers, and an error of ours is seen before it ends."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

pytest.importorskip("caffe")

from caffe_nets import layer

needs_command = pytest.mark.skipif(not shutil.which("caffe"), reason="this Caffe comes without the caffe command")


def train(folder, parameters: str, ours: bool) -> subprocess.CompletedProcess:
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
    command = ["caffe", "train", f"--solver={folder}/solver.prototxt"]
    return subprocess.run(["env", "GLOG_minloglevel=0", *command], capture_output=True, text=True)


@needs_command
def test_trains_as_natively(tmp_path):
    parameters = 'num_output: 2 kernel_size: 3 weight_filler { type: "xavier" }'
    curves = []
    for ours in (False, True):
        done = train(tmp_path, parameters, ours)
        assert done.returncode == 0, done.stderr[-3000:]
        curves.append([float(loss) for loss in re.findall(r"Iteration \d+.*, loss = (\S+)", done.stderr)])
    assert len(curves[0]) >= 4
    assert curves[1] == pytest.approx(curves[0], rel=1e-4)


@needs_command
def test_an_error_is_printed_before_the_command_ends(tmp_path):
    done = train(tmp_path, "num_output: 2 kernel_size: 9", ours=True)
    assert done.returncode != 0
    assert "clgraft: OclConvolution 'op' failed in reshape: [conv] got kernel (9, 9), expected" in done.stderr
