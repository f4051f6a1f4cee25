"""`clgraft train`: the log, data layers, snapshots that go on with the same bits, signals, and what is refused."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest

from clgraft import core
from clgraft.caffe_layers.data.pixels import resized
from clgraft.caffe_layers.data.sources import batches
from clgraft.caffe_layers.data.transform import Transform
from clgraft.caffe_layers.nets.weights import read_caffemodel
from clgraft.caffe_layers.prototxt import schema
from clgraft.caffe_layers.solver import policies
from clgraft.caffe_layers.solver.snapshots import read_state
from clgraft.caffe_layers.solver.solver import Solver
from clgraft.core.model import ModelError
from clgraft.core.runtime.devices import available
from clgraft.plugins.command_line.main import main
from clgraft.plugins.models.groups import TorchGroup
from clgraft.plugins.plugin import PluginError

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

AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}  # Open MPI, in containers


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


def test_bytes_get_another_size_as_in_opencv():
    """Interpolated within a unit; tests with Caffe compare the pixels themselves."""
    rng = np.random.default_rng(5)
    image = rng.integers(0, 256, (3, 6, 9), dtype=np.uint8)
    for size in ((3, 5), (6, 9), (11, 20), (1, 1)):
        found = resized(image, size)
        places = [np.clip((np.arange(n) + 0.5) * (e / n) - 0.5, 0, e - 1) for n, e in zip(size, image.shape[1:])]
        low = [np.floor(place).astype(int) for place in places]
        high = [np.minimum(at + 1, extent - 1) for at, extent in zip(low, image.shape[1:])]
        (v, w), wide = (place - at for place, at in zip(places, low)), image.astype(float)
        rows = wide[:, :, low[1]] * (1 - w) + wide[:, :, high[1]] * w
        expected = rows[:, low[0]] * (1 - v)[:, None] + rows[:, high[0]] * v[:, None]
        assert found.dtype == np.uint8 and np.abs(found - expected).max() <= 1.01, size
    np.testing.assert_array_equal(resized(image[:, :4, :4], (2, 2))[:, 0, 0], (image[:, :2, :2].sum((1, 2)) + 2) // 4)


def test_windows(tmp_path):
    image_module = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(1).integers(0, 256, (8, 10, 3), dtype=np.uint8)
    image_module.fromarray(pixels).save("a.png")
    (tmp_path / "list.txt").write_text("# 0\na.png\n3 8 10\n3\n2 0.9 2 1 5 4\n1 0.1 0 0 3 3\n3 0.4 0 0 1 1\n")
    given = 'source: "list.txt" batch_size: 4 fg_fraction: 0.5 bg_threshold: 0.3'
    words = 'name: "x" type: "WindowData" top: "a" top: "b" transform_param {{ crop_size: 4 mean_value: 7 {} }}'
    text = words.format("") + f" window_data_param {{ {given} scale: 0.5 }}"
    batch = next(batches(layer(text), True, np.random.default_rng(1)))
    channels = pixels[:, :, ::-1].transpose(2, 0, 1).astype("f4")
    assert batch["b"].tolist() == [0, 0, 2, 2]
    np.testing.assert_array_equal(batch["a"][3], (channels[:, 1:5, 2:6] - 7) * 0.5)
    np.testing.assert_array_equal(batch["a"][0], (channels[:, :4, :4] - 7) * 0.5)
    # a padding of one pixel on each side, of which two sides are outside of the image
    text = words.format("mirror: true") + f" window_data_param {{ {given} context_pad: 1 cache_images: true }}"
    found = np.concatenate([next(batches(layer(text), True, np.random.default_rng(i)))["a"][:2] for i in range(4)])
    assert len({each.tobytes() for each in found}) == 2
    for each in found:
        rows, columns = (each[0] != 0).any(1), (each[0] != 0).any(0)
        assert not rows[0] and rows[1:].all() and columns.sum() == 3 and (not columns[0] or not columns[3])
    for wrong, message in (
        ("# 0 a.png 3 8 10 1 2", "it ends too early"),
        ("# 1 a.png 3 8 10 0", "where # 0 is expected"),
        ("# 0 a.png 3 8 10 1 2 0.9 0 0 1 1", "1 objects and 0 backgrounds"),
        ("# 0 a.png 3 8 10 2 2 0.9 0 0 1 8 1 0 0 0 1 8", "an image of 10 x 8 pixels"),
    ):
        (tmp_path / "list.txt").write_text(wrong)
        with pytest.raises(ModelError, match=message):
            next(batches(layer(words.format("") + f" window_data_param {{ {given} }}"), True, np.random.default_rng(1)))


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
    saving = 'layer { name: "h" type: "HDF5Output" bottom: "fc" bottom: "label" hdf5_output_param { file_name: "o.h5" }'
    (tmp_path / "net.prototxt").write_text(DATA + REST + saving + " include { phase: TEST } }")
    lines: list[str] = []
    Solver("solver.prototxt", log=lambda file, line, severity="I": lines.append(line)).test_all()
    with h5py.File("o.h5", "r") as file:
        shapes = {name: (file[name].shape, file[name].dtype) for name in file}
        assert shapes == {"data": ((4, 3, 1, 1), np.float32), "label": ((4, 1, 1, 1), np.float32)}
    assert sum("net output #" in line for line in lines) == 2  # loss and accuracy


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


def images_net(batch: int) -> str:
    source = f'image_data_param {{ source: "list.txt" batch_size: {batch} }} transform_param {{ scale: 0.004 }}'
    data = f'layer {{ name: "data" type: "ImageData" top: "data" top: "label" {source} }}\n'
    rest = "".join(line for line in REST.splitlines(True) if '"bn"' not in line and '"drop"' not in line)
    return data + rest


@pytest.mark.parametrize("by", ["gloo", "mpi"])
def test_two_processes_train_as_one_with_twice_the_batch(by, tmp_path, monkeypatch, capfd):
    """`-device A,B`: each process reads every second record, and gradients are averaged."""
    torch = pytest.importorskip("torch" if by == "gloo" else "mpi4py")
    if by == "gloo" and not torch.distributed.is_available():
        pytest.skip("this PyTorch has no processes in parallel")
    mpirun = shutil.which("mpiexec", path=os.pathsep.join((os.path.dirname(sys.executable), os.environ["PATH"])))
    if by == "mpi" and mpirun is None:
        pytest.skip("there is no mpiexec")
    image_module = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(2)
    names = [f"{number}.png" for number in range(7)]
    for name in names:
        image_module.fromarray(rng.integers(0, 256, (6, 6, 3), dtype=np.uint8)).save(name)
    (tmp_path / "list.txt").write_text("".join(f"{name} {i % 3}\n" for i, name in enumerate(names)))
    text = re.sub("test_i[a-z]+: [0-9]", "", SOLVER).replace("snapshot: 3", "clip_gradients: 0.9 weight_decay: 0.01")
    (tmp_path / "solver.prototxt").write_text(text)
    (tmp_path / "net.prototxt").write_text(images_net(4))
    whole = Solver("solver.prototxt")
    whole.step(6)
    (tmp_path / "net.prototxt").write_text(images_net(2))
    device = core.context().device.selector
    monkeypatch.setenv("POCL_CACHE_DIR", str(tmp_path / "pocl"))
    words = ["train", "-solver", "solver.prototxt", "-device", f"{device},{device}"]
    if by == "gloo":
        assert main(words) == 0
        shown = capfd.readouterr().err
    else:
        command = [mpirun, "-n", "2", sys.executable, "-m", "clgraft.plugins.command_line", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, **AS_ROOT})
        shown = done.stdout + done.stderr  # some launchers join the two
        assert done.returncode == 0, shown
    assert shown.count("Iteration 2, lr = 0.01") == 1 and shown.count("Snapshotting solver state") == 1
    state = read_state("run_iter_6.solverstate")
    found = {layer.name: layer.blobs for layer in read_caffemodel(state.learned_net)}
    for name, array in whole.trainer.parameters.items():
        layer, _, place = name[:-1].partition("[")
        np.testing.assert_allclose(found[layer][int(place)], array, rtol=1e-4, atol=1e-5, err_msg=name)
    if by == "gloo":
        with pytest.raises(PluginError, match=r"no group of torch\.distributed"):
            TorchGroup()
        return
    os.remove("6.png")  # a process that fails ends the other one, which would wait for it
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, **AS_ROOT})
    assert done.returncode != 0


def test_devices_that_are_refused(monkeypatch, capsys):
    for words, message in (
        (["-gpu", "0", "-device", "cpu"], "expected one of them"),
        (["-gpu", "all"], "there is no GPU" if not [d for d in available() if d.is_gpu] else ""),
    ):
        if message:
            assert main(["train", "-solver", "solver.prototxt", *words]) != 0
            assert message in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    assert main(["train", "-solver", "solver.prototxt", "-device", "cpu,cpu"]) != 0
    assert "pip install torch, or mpi4py and mpirun -n 2" in capsys.readouterr().err


def test_sixteen_bits_train_and_test(tmp_path):
    (tmp_path / "solver.prototxt").write_text(SOLVER + "iter_size: 2 clip_gradients: 0.5")
    small, plain = Solver("solver.prototxt", precision="float16"), Solver("solver.prototxt")
    small.step(1)
    plain.step(1)
    a, b = small.trainer.outputs["loss"], plain.trainer.outputs["loss"]
    assert a == pytest.approx(b, rel=0.02) and a != b
    small.step(3)
    assert small.trainer.skipped <= 2 and small.trainer.loss_scale == 2.0 ** (16 - small.trainer.skipped)
    assert small.trainer.steps + small.trainer.skipped == 4
    small.trainer.scale_state = np.array([2.0**9, 17, 3])
    states = [small.snapshot()[1]]
    if importlib.util.find_spec("h5py"):
        small.parameters.snapshot_format = 0
        states.append(small.snapshot()[1])
    for state in states:
        again = Solver("solver.prototxt", snapshot=state, precision="float16")
        np.testing.assert_array_equal(again.trainer.scale_state, [2.0**9, 17, 3])
        again = Solver("solver.prototxt", snapshot=state)
        assert again.iteration == 4 and again.trainer.loss_scale == 1
    message = schema.message_class("SolverState").FromString((tmp_path / states[0]).read_bytes())  # as Caffe reads it
    assert message.iter == 4 and len(message.history) == len(read_state(states[0]).history)
    assert read_state(plain.snapshot()[1]).loss_scale is None
    assert np.isfinite(small.test_all()[0]["loss"])
    main(["train", "-solver", "solver.prototxt", "-precision", "bfloat16"])
    assert (tmp_path / "run_iter_6.caffemodel").exists()


def test_debug_info_has_means_of_data_and_gradients(tmp_path):
    """Values of a step against those of the net's own graph; tests of Caffe's layers compare all lines with Caffe's."""
    (tmp_path / "solver.prototxt").write_text(SOLVER + "debug_info: true")
    lines: list[str] = []
    made = Solver("solver.prototxt", log=lambda place, text, severity="I": lines.append(f"{severity}{text}"))
    before = made.trainer.parameters
    batch = {name: array.copy() for name, array in made.feed._first.items()}
    made.step(1)
    text = "\n".join(lines)
    after = made.trainer.parameters
    for name, expected in (
        ("Layer data, top blob data data", np.abs(batch["data"]).mean()),
        ("Layer conv, param blob 0 data", np.abs(before["conv[0]"]).mean()),
        ("Layer bn, param blob 2 data", np.abs(after["bn[2]"]).mean()),
    ):
        found = re.findall(rf"\[Forward\] {name}: (\S+)", text)  # the last one: tests come first
        assert found and float(found[-1]) == pytest.approx(expected, rel=1e-4), name
    for layer in ("loss", "fc", "drop", "relu", "bn"):
        assert re.search(rf"I    \[Backward\] Layer {layer}, bottom blob \w+ diff: ", text), layer
    assert "Layer conv, bottom blob data diff" not in text and "Layer bn, param blob 0 diff: 0\n" in text
    assert re.search(r"E    \[Backward\] All net params \(data, diff\): L1 norm = \(\S+, \S+\); L2 norm = ", text)
    assert text.count("[Forward] Layer loss, top blob loss data: ") == 2 + 1  # two batches of the test
    same = Solver("solver.prototxt")
    same.step(1)
    for name, array in after.items():
        np.testing.assert_array_equal(same.trainer.parameters[name], array, err_msg=name)


def test_a_terminal_shows_progress_and_the_loss(tmp_path):
    pty = pytest.importorskip("pty")
    (tmp_path / "solver.prototxt").write_text(SOLVER.replace("max_iter: 6", "max_iter: 60"))
    reader, writer = pty.openpty()
    words = [sys.executable, "-m", "clgraft.plugins.command_line", "train", "-solver", "solver.prototxt"]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    shown = b""
    with subprocess.Popen(words, stderr=writer, env=environment) as process:
        os.close(writer)
        while True:
            try:
                part = os.read(reader, 2**16)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            shown += part
        assert process.wait(120) == 0
    os.close(reader)
    text = shown.decode(errors="replace")
    assert re.search(r"loss \d", text) and "60/60" in text and "left" in text
    assert "Iteration 58, loss" in text and "spent waiting for data" in text
