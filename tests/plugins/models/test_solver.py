"""`clgraft train`: the log, data layers, snapshots that go on with the same bits, signals, and what is refused."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys

import numpy as np
import pytest

from clgraft.caffe_layers.data.sources import batches
from clgraft.caffe_layers.data.transform import Transform
from clgraft.caffe_layers.prototxt import schema
from clgraft.caffe_layers.solver import policies
from clgraft.caffe_layers.solver.solver import Solver
from clgraft.core.model import ModelError
from clgraft.plugins.command_line.main import main

DATA = """
layer { name: "data" type: "DummyData" top: "data" top: "label" dummy_data_param {
  shape { dim: 4 dim: 2 dim: 6 dim: 6 } shape { dim: 4 }
  data_filler { type: "gaussian" } data_filler { type: "constant" value: 1 } } }
"""
GIVEN = """
layer { name: "data" type: "MemoryData" top: "data" top: "label"
  memory_data_param { batch_size: 4 channels: 2 height: 6 width: 6 } }
"""
REST = """
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param { num_output: 3 kernel_size: 3 weight_filler { type: "msra" } } }
layer { name: "bn" type: "BatchNorm" bottom: "conv" top: "conv" }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "drop" type: "Dropout" bottom: "conv" top: "conv" }
layer { name: "fc" type: "InnerProduct" bottom: "conv" top: "fc"
  inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "fc" bottom: "label" top: "loss" }
layer { name: "acc" type: "Accuracy" bottom: "fc" bottom: "label" top: "acc" include { phase: TEST } }
"""
SOLVER = """net: "net.prototxt" type: "Adam" base_lr: 0.01 momentum: 0.9 lr_policy: "fixed"
test_iter: 2 test_interval: 4 display: 2 max_iter: 6 snapshot: 3 snapshot_prefix: "run" random_seed: 5 """


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.prototxt").write_text('name: "tiny"' + DATA + REST)
    (tmp_path / "solver.prototxt").write_text(SOLVER)


def test_the_command_writes_caffes_log_and_snapshots(capfd):
    assert main(["train", "-solver", "solver.prototxt"]) == 0
    shown = capfd.readouterr().err
    form = re.compile(r"I\d{4} \d\d:\d\d:\d\d\.\d{6} +\d+ \w+\.cpp:\d+\] (.*)")
    text = "\n".join(found[1] for found in map(form.fullmatch, shown.splitlines()) if found)
    for expected in (
        r"Solving tiny\n",
        r"Iteration 0, Testing net \(#0\)\n    Test net output #0: acc = ",
        r"    Test net output #1: loss = [\d.]+ \(\* 1 = [\d.]+ loss\)",
        r"Iteration 2, loss = [\d.]+\n    Train net output #0: loss = [\d.]+ \(\* 1 = [\d.]+ loss\)\n",
        r"loss\)\nIteration 2, lr = 0.01\n",
        r"Iteration 4, Testing net",
        r"Snapshotting to binary proto file run_iter_3.caffemodel",
        r"Iteration 6, loss = [\d.]+\n",
        r"Optimization Done.",
    ):
        assert re.search(expected, text), expected
    assert sorted(name for name in os.listdir() if name.startswith("run_iter_6")) == [
        "run_iter_6.caffemodel",
        "run_iter_6.solverstate",
    ]
    assert main(["train", "-solver", "solver.prototxt", "-snapshot", "run_iter_3.solverstate"]) == 0
    assert "restoring history from run_iter_3.solverstate" in capfd.readouterr().err
    assert main(["train", "-solver", "solver.prototxt", "-snapshot", "a", "-weights", "b"]) == 1


def test_a_solver_goes_on_from_its_snapshot_with_the_same_bits(tmp_path):
    (tmp_path / "net.prototxt").write_text(
        (GIVEN + REST).replace('name: "drop" type: "Dropout"', 'name: "d" type: "ELU"')
    )
    rng = np.random.default_rng(1)
    images = rng.standard_normal((6, 4, 2, 6, 6)).astype(np.float32)
    labels = rng.integers(0, 3, (6, 4)).astype(np.float32)
    (tmp_path / "solver.prototxt").write_text(re.sub("test_i[a-z]+: [0-9]", "", SOLVER))
    whole = Solver("solver.prototxt", feed={"data": iter(images), "label": iter(labels)})
    whole.step(6)
    rest = Solver(
        "solver.prototxt", snapshot="run_iter_3.solverstate", feed={"data": iter(images[3:]), "label": iter(labels[3:])}
    )
    rest.step(3)
    for name, array in whole.trainer.parameters.items():
        np.testing.assert_array_equal(rest.trainer.parameters[name], array, err_msg=name)
    with pytest.raises(ModelError, match="no more arrays for 'data'"):
        rest.step(1)


def test_signals_take_snapshots_and_stop(tmp_path):
    (tmp_path / "solver.prototxt").write_text(
        SOLVER.replace("max_iter: 6", "max_iter: 1000000").replace("snapshot: 3", "")
    )
    words = [sys.executable, "-m", "clgraft.plugins.command_line", "train", "-solver", "solver.prototxt"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        sent = 0
        for line in process.stderr:
            if "Train net output" in line and sent == 0:
                process.send_signal(signal.SIGHUP)
                sent = 1
            elif "Snapshotting solver state" in line and sent == 1:
                process.send_signal(signal.SIGINT)
                sent = 2
        assert process.wait(60) == 0 and sent == 2
    assert len([name for name in os.listdir() if name.endswith(".solverstate")]) == 2


def layer(text: str):
    return schema.parse("LayerParameter", text)


def test_transformations_and_images(tmp_path):
    image = np.arange(2 * 5 * 7, dtype=np.uint8).reshape(2, 5, 7)
    text = 'name: "x" transform_param { crop_size: 3 mirror: true scale: 0.5 mean_value: 2 mean_value: 4 }'
    central = Transform(layer(text), False, np.random.default_rng(1))(image)
    expected = (image[:, 1:4, 2:5] - np.float32([2, 4]).reshape(2, 1, 1)) * 0.5
    np.testing.assert_array_equal(central, expected)
    random = Transform(layer(text), True, np.random.default_rng(1))
    crops = {random(image).tobytes() for _ in range(60)}
    assert 20 < len(crops) <= 2 * 3 * 5
    with pytest.raises(ModelError, match="expected at least crop_size 9"):
        Transform(layer("transform_param { crop_size: 9 }"), True, np.random.default_rng(1)).shape((2, 5, 7))
    image_module = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(1).integers(0, 256, (6, 4, 3), dtype=np.uint8)
    image_module.fromarray(pixels).save("a.png")
    (tmp_path / "list.txt").write_text("a.png 3\na.png 1\n")
    text = 'name: "x" type: "ImageData" top: "a" top: "b" image_data_param { source: "list.txt" batch_size: 3 }'
    batch = next(batches(layer(text), False, np.random.default_rng(1)))
    np.testing.assert_array_equal(batch["a"][2], pixels[:, :, ::-1].transpose(2, 0, 1))
    assert batch["b"].tolist() == [3, 1, 3]


def test_hdf5(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File("a.h5", "w") as file:
        file["data"], file["label"] = np.arange(12.0).reshape(3, 4), np.arange(3.0)
    (tmp_path / "list.txt").write_text("a.h5\n")
    text = 'name: "x" type: "HDF5Data" top: "data" top: "label" hdf5_data_param { source: "list.txt" batch_size: 2 }'
    source = batches(layer(text), True, np.random.default_rng(1))
    assert [next(source)["label"].tolist() for _ in range(3)] == [[0, 1], [2, 0], [1, 2]]
    (tmp_path / "solver.prototxt").write_text(SOLVER + "snapshot_format: HDF5")
    first = Solver("solver.prototxt")
    first.step(3)
    again = Solver("solver.prototxt", snapshot="run_iter_3.solverstate.h5")
    for name, array in first.trainer.parameters.items():
        np.testing.assert_array_equal(again.trainer.parameters[name], array)
    assert again.iteration == 3


def test_lmdb(tmp_path):
    lmdb = pytest.importorskip("lmdb")
    with lmdb.open("db", map_size=2**20) as database, database.begin(write=True) as transaction:
        for number in range(3):
            datum = schema.message_class("Datum")()
            datum.channels, datum.height, datum.width, datum.label = 1, 2, 2, number
            datum.data = bytes([number] * 4)
            transaction.put(b"%d" % number, datum.SerializeToString())
    text = 'name: "x" type: "Data" top: "a" top: "b" data_param { source: "db" backend: LMDB batch_size: 2 }'
    source = batches(layer(text), False, np.random.default_rng(1))
    assert [next(source)["b"].tolist() for _ in range(2)] == [[0, 1], [2, 0]]
    assert next(source)["a"].ravel().tolist() == [1.0] * 4 + [2.0] * 4


def test_rates_of_all_policies():
    numbers = "base_lr: 0.1 gamma: 0.5 power: 2 stepsize: 3 stepvalue: 2 stepvalue: 5 max_iter: 10"
    expected = {
        "fixed": [0.1] * 7,
        "step": [0.1 * 0.5 ** (i // 3) for i in range(7)],
        "exp": [0.1 * 0.5**i for i in range(7)],
        "inv": [0.1 * (1 + 0.5 * i) ** -2 for i in range(7)],
        "multistep": [0.1, 0.1, 0.05, 0.05, 0.05, 0.025, 0.025],
        "poly": [0.1 * (1 - i / 10) ** 2 for i in range(7)],
        "sigmoid": [0.1 / (1 + np.exp(-0.5 * (i - 3))) for i in range(7)],
    }
    assert set(expected) == set(policies.POLICIES)
    for policy, rates in expected.items():
        solver, step, found = schema.parse("SolverParameter", f'{numbers} lr_policy: "{policy}"'), 0, []
        for iteration in range(7):
            step = policies.current_step(solver, iteration, step)
            found.append(policies.rate(solver, iteration, step))
        np.testing.assert_allclose(found, rates, rtol=1e-6, err_msg=policy)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('type: "Adam"', 'type: "Adma"', "type 'Adma', expected one of .*'Adam'"),
        ('type: "Adam"', 'type: "RMSProp"', "momentum 0.9 for RMSProp, expected none"),
        ('"fixed"', '"fix"', "lr_policy 'fix'"),
        ('net: "net.prototxt"', "", "for the train net, expected one of"),
        ("test_interval: 4", "", "test_interval 0"),
    ],
)
def test_solvers_that_are_refused(tmp_path, old, new, message):
    (tmp_path / "solver.prototxt").write_text(SOLVER.replace(old, new))
    with pytest.raises(ModelError, match=message):
        Solver("solver.prototxt")


def test_data_that_is_refused(tmp_path):
    text = 'name: "x" type: "Data" top: "a" data_param { source: "db" batch_size: 2 }'
    with pytest.raises(ModelError, match="LevelDB db in layer 'x', expected backend: LMDB"):
        next(batches(layer(text), True, np.random.default_rng(1)))
    (tmp_path / "net.prototxt").write_text(GIVEN + REST)
    with pytest.raises(ModelError, match=r"no arrays for \['data', 'label'\] of layer 'data'"):
        Solver("solver.prototxt")
    (tmp_path / "state").write_bytes(b"\x0a\xff")
    with pytest.raises(ModelError, match="state with"):
        Solver("solver.prototxt", snapshot="state")
