"""Solvers without Caffe against Caffe's own: losses, parameters and snapshots, with the same weights and data."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest

caffe = pytest.importorskip("caffe")

from clgraft.caffe_layers.solver.snapshots import read_state
from clgraft.caffe_layers.solver.solver import Solver
from tests.caffe_layers.caffe_nets import native_learns

NET = """
name: "tiny"
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 4 dim: 3 dim: 8 dim: 8 } } }
layer { name: "label" type: "Input" top: "label" input_param { shape { dim: 4 } } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
  param { lr_mult: 1 } param { lr_mult: 2 decay_mult: 0 }
  convolution_param { num_output: 6 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "bn" type: "BatchNorm" bottom: "conv" top: "conv" }
layer { name: "scale" type: "Scale" bottom: "conv" top: "conv" scale_param { bias_term: true } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "pool" type: "Pooling" bottom: "conv" top: "pool" pooling_param { pool: MAX kernel_size: 2 stride: 2 } }
layer { name: "frozen" type: "InnerProduct" bottom: "pool" top: "frozen" param { lr_mult: 0 } param { lr_mult: 0 }
  inner_product_param { num_output: 7 weight_filler { type: "gaussian" std: 0.2 } } }
layer { name: "one" type: "InnerProduct" bottom: "frozen" top: "one" param { name: "w" } param { name: "b" }
  inner_product_param { num_output: 7 weight_filler { type: "xavier" } } }
layer { name: "two" type: "InnerProduct" bottom: "one" top: "two" param { name: "w" } param { name: "b" }
  inner_product_param { num_output: 7 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "two" bottom: "label" top: "loss" loss_weight: 0.5 }
layer { name: "far" type: "EuclideanLoss" bottom: "one" bottom: "frozen" top: "far" loss_weight: 0.1 }
layer { name: "acc" type: "Accuracy" bottom: "two" bottom: "label" top: "acc" }
"""
COUNT = 12
# a bias before a batch norm has a gradient of nothing but rounding, and the moving mean follows it
NOISE = (("conv", 1), ("bn", 0))
RNG = np.random.default_rng(4)
IMAGES = RNG.standard_normal((3 * COUNT, 4, 3, 8, 8)).astype(np.float32)
LABELS = RNG.integers(0, 7, (3 * COUNT, 4)).astype(np.float32)
SGD = "base_lr: 0.05 momentum: 0.9 weight_decay: 0.01"
CASES = {
    "sgd-fixed": f'type: "SGD" {SGD} lr_policy: "fixed"',
    "sgd-step-l1": f'type: "SGD" {SGD} lr_policy: "step" stepsize: 4 gamma: 0.5 regularization_type: "L1"',
    "sgd-multistep-clipped": f'{SGD} lr_policy: "multistep" stepvalue: 3 stepvalue: 7 gamma: 0.3 clip_gradients: 0.5',
    "sgd-poly-parts": f'{SGD} lr_policy: "poly" power: 0.7 iter_size: 3 clip_gradients: 1',
    "nesterov-inv": f'type: "Nesterov" {SGD} lr_policy: "inv" gamma: 0.1 power: 0.75 snapshot_format: HDF5',
    "adagrad-exp": 'type: "AdaGrad" base_lr: 0.02 weight_decay: 0.01 lr_policy: "exp" gamma: 0.95',
    "rmsprop-sigmoid": 'type: "RMSProp" base_lr: 0.002 rms_decay: 0.9 lr_policy: "sigmoid" gamma: 0.5 stepsize: 6',
    "adadelta": 'solver_type: ADADELTA base_lr: 1 momentum: 0.9 delta: 1e-4 weight_decay: 0.001 lr_policy: "fixed"',
    "adam-parts": 'type: "Adam" base_lr: 0.002 momentum: 0.9 momentum2: 0.99 lr_policy: "fixed" iter_size: 2',
}


def distances(net: object, ours: Solver) -> float:
    """Return the largest difference of two nets' parameters, as a share of each one's largest element."""
    values, worst = ours.trainer.parameters, 0.0
    for layer, blobs in net.params.items():
        for place, blob in enumerate(blobs):
            name = ours.net._name(next(each for each in ours.net._layers if each.name == layer), place)
            scale = max(1e-3, float(np.abs(blob.data).max()))
            if (layer, place) not in NOISE:
                worst = max(worst, float(np.abs(blob.data.reshape(-1) - values[name].reshape(-1)).max()) / scale)
    return worst


@pytest.mark.parametrize("case", CASES)
def test_a_solver_is_caffes(case, tmp_path, monkeypatch):
    """Losses of some iterations, and from a snapshot of the other one the same again."""
    monkeypatch.chdir(tmp_path)
    lines = NET.splitlines(keepends=True)
    text = NET if native_learns() else "".join(line for line in lines if "BatchNorm" not in line)
    (tmp_path / "net.prototxt").write_text(text)
    tail = f'net: "net.prototxt" max_iter: {COUNT} snapshot_prefix: "snap" display: 0 snapshot: 0 random_seed: 3'
    given = CASES[case] if find_spec("h5py") else CASES[case].replace("snapshot_format: HDF5", "")
    end = ".solverstate.h5" if "HDF5" in given else ".solverstate"
    (tmp_path / "solver.prototxt").write_text(f"{given} {tail} solver_mode: CPU snapshot_after_train: false")
    theirs = caffe.get_solver("solver.prototxt")
    theirs.net.save("start.caffemodel")
    size = 1 if "iter_size" not in CASES[case] else int(CASES[case].split("iter_size: ")[1].split()[0])
    repeated = [np.repeat(array, size, 0) for array in (IMAGES, LABELS)]
    ours = Solver("solver.prototxt", ["start.caffemodel"], feed=dict(zip(("data", "label"), map(iter, repeated))))

    def both(first: object, second: Solver, begin: int, end: int) -> None:
        for place in range(begin, end):
            first.net.blobs["data"].data[...], first.net.blobs["label"].data[...] = IMAGES[place], LABELS[place]
            first.step(1)
            second.step(1)
            found = second.trainer.outputs
            for name in ("loss", "far", "acc"):
                given = first.net.blobs[name].data
                np.testing.assert_allclose(found[name], given, 2e-3, 2e-4, err_msg=f"{name} {place}")

    half = COUNT // 2
    both(theirs, ours, 0, half)
    assert distances(theirs.net, ours) < 2e-3
    ours.snapshot()
    os.rename(f"snap_iter_6{end}", f"ours{end}")
    resumed = caffe.get_solver("solver.prototxt")
    resumed.restore(f"ours{end}")
    assert resumed.iter == half and distances(resumed.net, ours) == 0
    theirs.snapshot()
    rest = [iter(array[half * size :]) for array in repeated]
    again = Solver("solver.prototxt", snapshot=f"snap_iter_6{end}", feed=dict(zip(("data", "label"), rest)))
    assert again.iteration == half and distances(theirs.net, again) == 0
    given = read_state(f"snap_iter_6{end}").history
    again.snapshot()
    for mine, array in zip(read_state(f"snap_iter_6{end}").history, given):
        np.testing.assert_array_equal(mine.reshape(-1), array.reshape(-1))
    both(resumed, again, half, COUNT)
    assert distances(resumed.net, again) < 2e-3


SCRIPT = """
import caffe, numpy
solver = caffe.get_solver("solver.prototxt")
solver.net.copy_from("start.caffemodel")
images, labels = numpy.load("images.npy"), numpy.load("labels.npy")
solver.net.blobs["data"].data[...], solver.net.blobs["label"].data[...] = images, labels
solver.step(3)
"""


def test_debug_info_is_caffes(tmp_path, monkeypatch):
    """All lines of two iterations of two parts each, in Caffe's order: data, gradients, and all parameters."""
    monkeypatch.chdir(tmp_path)
    lines = NET.splitlines(keepends=True)
    text = NET if native_learns() else "".join(line for line in lines if "BatchNorm" not in line)
    (tmp_path / "net.prototxt").write_text(text)
    (tmp_path / "solver.prototxt").write_text(
        f'net: "net.prototxt" type: "SGD" {SGD} lr_policy: "fixed" max_iter: 9 display: 2 iter_size: 2 random_seed: 3'
        ' debug_info: true snapshot_after_train: false solver_mode: CPU snapshot_prefix: "s"'
    )
    np.save("images.npy", IMAGES[0])
    np.save("labels.npy", LABELS[0])
    caffe.get_solver("solver.prototxt").net.save("start.caffemodel")
    environment = {**os.environ, "GLOG_minloglevel": "0", "GLOG_logtostderr": "1"}
    run = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, stderr=subprocess.PIPE, text=True, check=True)
    form = re.compile(r"([IE])\d{4}.* (net\.cpp:)\d+\] (    \[(?:Forward|Backward)\].*)")
    theirs = [found[1] + found[3] for found in map(form.match, run.stderr.splitlines()) if found]
    ours: list[str] = []

    def log(place: str, line: str, severity: str = "I") -> None:
        if "[Forward]" in line or "[Backward]" in line:
            ours.append(severity + line)

    feed = {"data": IMAGES[0], "label": LABELS[0]}
    Solver("solver.prototxt", ["start.caffemodel"], feed=feed, log=log).step(3)
    number = re.compile(r"(?<=[ (])-?\d[\d.e+-]*(?=[,;)]|$)")
    assert theirs and [number.sub("#", line) for line in ours] == [number.sub("#", line) for line in theirs]
    for mine, line in zip(ours, theirs):
        a, b = ([float(each) for each in number.findall(one)] for one in (mine, line))
        np.testing.assert_allclose(a, b, rtol=5e-3, atol=1e-6, err_msg=line)
