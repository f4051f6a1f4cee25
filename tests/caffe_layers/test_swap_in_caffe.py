"""Swapped nets in a real Caffe: it takes them, loads native weights, computes and learns the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from clgraft.caffe_layers.swap import swap_back, swap_file, swap_net
from clgraft.caffe_layers.swap.upgrade import upgrade

caffe = pytest.importorskip("caffe", reason="Caffe is not installed for this Python")

NETS = Path(__file__).parent / "nets"
# the others hold layers or files that only their fork or their author has
LOADABLE = [
    "lenet",
    "alexnet_deploy",
    "resnet_deploy",
    "mobilenet_deploy",
    "googlenet",
    "squeezenet_deploy",
    "shared_weights",
    "lenet_v1",
    "alexnet_v0",
]
TOLERANCE = {"rtol": 2e-4, "atol": 2e-5}


def load(folder, text, phase, name="net"):
    path = folder / f"{name}.prototxt"
    path.write_text(text, encoding="utf-8")
    return caffe.Net(str(path), phase)


def fill(net, rng):
    """Random weights; statistics of batch norms stay possible ones."""
    for blobs in net.params.values():
        for blob in blobs:
            blob.data[...] = rng.uniform(0.2, 1, blob.data.shape) * (rng.choice([-1, 1]) if blob.data.ndim > 1 else 1)


def shapes(net):
    return (
        {name: blob.data.shape for name, blob in net.blobs.items()},
        {name: [blob.data.shape for blob in blobs] for name, blobs in net.params.items()},
        list(net._layer_names),
    )


@pytest.mark.parametrize("phase", [caffe.TRAIN, caffe.TEST], ids=["train", "test"])
@pytest.mark.parametrize("name", LOADABLE)
def test_swapped_nets_load_native_weights_and_compute_the_same(name, phase, tmp_path, rng):
    text = (NETS / f"{name}.prototxt").read_text(encoding="utf-8")
    swapped, report = swap_net(text)
    assert report.swapped
    native, ours = load(tmp_path, text, phase, "native"), load(tmp_path, swapped, phase, "ours")
    assert shapes(native) == shapes(ours)
    fill(native, rng)
    native.save(str(tmp_path / "native.caffemodel"))
    ours.copy_from(str(tmp_path / "native.caffemodel"))
    ours.save(str(tmp_path / "ours.caffemodel"))
    again = load(tmp_path, text, phase, "native")
    again.copy_from(str(tmp_path / "ours.caffemodel"))
    for key, blobs in native.params.items():
        for blob, other, returned in zip(blobs, ours.params[key], again.params[key]):
            np.testing.assert_array_equal(other.data, blob.data)
            np.testing.assert_array_equal(returned.data, blob.data)
    sources = {blob for blob in native.blobs if blob in ("data", "label", "a", "b")}
    dropout = phase == caffe.TRAIN and any(layer.type == "Dropout" for layer in native.layers)
    native.forward(), ours.forward()
    for blob in sources:
        native.blobs[blob].data[...] = rng.normal(size=native.blobs[blob].data.shape) if blob != "label" else 1
        ours.blobs[blob].data[...] = native.blobs[blob].data
    first = first_consumer(native)
    native.forward(start=first), ours.forward(start=first)
    for blob in native.blobs:
        if dropout and blob in dropped(native):
            continue
        np.testing.assert_allclose(ours.blobs[blob].data, native.blobs[blob].data, err_msg=blob, **TOLERANCE)


def first_consumer(net):
    """The layer, a split perhaps, that follows the sources."""
    names = list(net._layer_names)
    kinds = [layer.type for layer in net.layers]
    return next(name for name, kind in zip(names, kinds) if kind not in ("Input", "DummyData"))


def dropped(net):
    """Blobs that depend on a dropout's own random numbers."""
    found = set()
    for index, layer in enumerate(net.layers):
        tops = [list(net.blobs)[top] for top in net._top_ids(index)]
        bottoms = [list(net.blobs)[bottom] for bottom in net._bottom_ids(index)]
        if layer.type == "Dropout" or found & set(bottoms):
            found |= set(tops)
    return found


@pytest.mark.parametrize("name", ["lenet", "googlenet", "shared_weights", "lenet_v1"])
def test_gradients_are_the_same(name, tmp_path, rng):
    text = (NETS / f"{name}.prototxt").read_text(encoding="utf-8")
    native, ours = load(tmp_path, text, caffe.TRAIN, "native"), load(tmp_path, swap_net(text)[0], caffe.TRAIN, "ours")
    first = first_consumer(native)
    native.forward(), ours.forward()
    for key, blobs in native.params.items():
        for blob, other in zip(blobs, ours.params[key]):
            blob.data[...] = 0.3 * rng.normal(size=blob.data.shape)
            other.data[...] = blob.data
            other.diff[...] = blob.diff[...] = 0
    for blob in {"data", "label", "a", "b"} & set(native.blobs):
        native.blobs[blob].data[...] = 1 if blob == "label" else rng.normal(size=native.blobs[blob].data.shape)
        ours.blobs[blob].data[...] = native.blobs[blob].data
    for net in (native, ours):
        net.forward(start=first)
        net.backward()
    checked = 0
    for key, blobs in native.params.items():
        for blob, other in zip(blobs, ours.params[key]):
            assert np.abs(blob.diff).max() > 0
            np.testing.assert_allclose(other.diff, blob.diff, err_msg=key, **TOLERANCE)
            checked += 1
    assert checked


@pytest.mark.parametrize("name", ["lenet_v1", "alexnet_v0"])
def test_upgrade_gives_what_caffe_makes_of_the_old_form(name, tmp_path):
    text = (NETS / f"{name}.prototxt").read_text(encoding="utf-8")
    for phase in (caffe.TRAIN, caffe.TEST):
        old, new = load(tmp_path, text, phase, "old"), load(tmp_path, upgrade(text)[0], phase, "new")
        assert shapes(old) == shapes(new)
        assert [layer.type for layer in old.layers] == [layer.type for layer in new.layers]


@pytest.mark.parametrize("name", LOADABLE)
def test_restored_nets_load(name, tmp_path):
    text = (NETS / f"{name}.prototxt").read_text(encoding="utf-8")
    restored, _ = swap_back(swap_net(text)[0])
    assert shapes(load(tmp_path, restored, caffe.TEST, "a")) == shapes(load(tmp_path, text, caffe.TEST, "b"))


BATCH_NORM_PARAMS = ["", "param { lr_mult: 0 }", "param { lr_mult: 3 } param { lr_mult: 3 } param { lr_mult: 3 }"]


@pytest.mark.parametrize("params", BATCH_NORM_PARAMS)
def test_solver_leaves_swapped_statistics_alone(params, tmp_path, monkeypatch, rng):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.prototxt").write_text(
        f"""layer {{ name: "d" type: "DummyData" top: "x" top: "t" dummy_data_param {{
          shape {{ dim: 4 dim: 3 dim: 5 dim: 5 }} shape {{ dim: 4 dim: 3 dim: 5 dim: 5 }}
          data_filler {{ type: "gaussian" }} data_filler {{ type: "gaussian" }} }} }}
        layer {{ name: "bn" type: "BatchNorm" bottom: "x" top: "y" {params}
          batch_norm_param {{ use_global_stats: true }} }}
        layer {{ name: "scale" type: "Scale" bottom: "y" top: "z" }}
        layer {{ name: "loss" type: "EuclideanLoss" bottom: "z" bottom: "t" top: "loss" }}"""
    )
    (tmp_path / "solver.prototxt").write_text(
        'net: "net.prototxt" base_lr: 0.1 lr_policy: "fixed" momentum: 0.9 weight_decay: 0.5 max_iter: 3\n'
        "solver_mode: CPU snapshot_after_train: false random_seed: 7\n"
    )
    swap_file("solver.prototxt", "ours.prototxt")
    native, ours = caffe.SGDSolver("solver.prototxt"), caffe.SGDSolver("ours.prototxt")
    for solver in (native, ours):
        for blob in solver.net.params["bn"]:
            blob.data[...] = 2
    before = [blob.data.copy() for blob in ours.net.params["bn"]]
    ours.step(3)
    for blob, was in zip(ours.net.params["bn"], before):
        np.testing.assert_array_equal(blob.data, was)
    assert np.abs(ours.net.params["scale"][0].data - 1).max() > 1e-3


def test_multipliers_of_old_forms_reach_the_solver(tmp_path, monkeypatch):
    """A step moves each blob by its own rate and decay: equal steps mean equal multipliers."""
    monkeypatch.chdir(tmp_path)
    text = (NETS / "lenet_v1.prototxt").read_text(encoding="utf-8")
    text = text.replace('data_filler { type: "gaussian" }', "data_filler { value: 0.7 }")
    weights = []
    for name, net in (("old", text), ("new", swap_net(text)[0])):
        (tmp_path / f"{name}.prototxt").write_text(net)
        (tmp_path / "solver.prototxt").write_text(
            f'net: "{name}.prototxt" base_lr: 0.1 lr_policy: "fixed" weight_decay: 0.3 max_iter: 9 test_iter: 1\n'
            "test_interval: 100 test_initialization: false solver_mode: CPU snapshot_after_train: false\n"
        )
        solver = caffe.SGDSolver("solver.prototxt")
        rng = np.random.default_rng(3)
        for blobs in solver.net.params.values():
            for blob in blobs:
                blob.data[...] = rng.normal(size=blob.data.shape)
        before = [blob.data.copy() for blobs in solver.net.params.values() for blob in blobs]
        solver.step(2)
        weights.append([blob.data.copy() for blobs in solver.net.params.values() for blob in blobs])
        assert all(np.abs(new - old).max() > 1e-3 for new, old in zip(weights[-1], before))
    for old, new in zip(*weights):
        np.testing.assert_allclose(new, old, **TOLERANCE)


def test_nets_of_depthwise_forks_run_in_stock_caffe(tmp_path, rng):
    source = 'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 5 dim: 9 dim: 8 } } }\n'
    layer = (
        'layer {{ name: "{}" type: "{}" bottom: "x" top: "{}" convolution_param {{ {} kernel_size: 3 stride: 2 }} }}\n'
    )
    fork = (
        source
        + layer.format("a", "DepthwiseConvolution", "a", "num_output: 5 group: 5 pad: 1")
        + layer.format("b", "ConvolutionDepthwise", "b", "num_output: 77 pad: 1")
    )
    stock = source + "".join(layer.format(name, "Convolution", name, "num_output: 5 group: 5 pad: 1") for name in "ab")
    native, ours = load(tmp_path, stock, caffe.TEST, "native"), load(tmp_path, swap_net(fork)[0], caffe.TEST, "ours")
    assert shapes(native) == shapes(ours)
    fill(native, rng)
    native.save(str(tmp_path / "w.caffemodel"))
    ours.copy_from(str(tmp_path / "w.caffemodel"))
    native.blobs["x"].data[...] = ours.blobs["x"].data[...] = rng.normal(size=(2, 5, 9, 8))
    native.forward(), ours.forward()
    for blob in "ab":
        assert np.abs(native.blobs[blob].data).max() > 0
        np.testing.assert_allclose(ours.blobs[blob].data, native.blobs[blob].data, **TOLERANCE)


NET_THAT_LEARNS = """
layer { name: "data" type: "DummyData" top: "x" top: "t"
  dummy_data_param { shape { dim: 3 dim: 2 dim: 8 dim: 8 } shape { dim: 3 dim: 4 dim: 6 dim: 6 }
                     data_filler { value: 0.7 } data_filler { value: -0.4 } } }
layer { name: "conv" type: "Convolution" bottom: "x" top: "conv"
  param { lr_mult: 1 } param { lr_mult: 2 decay_mult: 0 }
  convolution_param { num_output: 4 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "bn" type: "BatchNorm" bottom: "conv" top: "bn" batch_norm_param { use_global_stats: true } }
layer { name: "scale" type: "Scale" bottom: "bn" top: "bn" scale_param { bias_term: true } }
layer { name: "relu" type: "ReLU" bottom: "bn" top: "bn" relu_param { negative_slope: 0.2 } }
layer { name: "dw" type: "Convolution" bottom: "bn" top: "dw"
  convolution_param { num_output: 4 group: 4 kernel_size: 3 pad: 1 weight_filler { type: "xavier" } } }
layer { name: "sum" type: "Eltwise" bottom: "bn" bottom: "dw" top: "sum" }
layer { name: "loss" type: "EuclideanLoss" bottom: "sum" bottom: "t" top: "loss" }
"""


@pytest.mark.parametrize("kind", ["SGD", "Adam", "Nesterov"])
def test_training_goes_on_from_the_other_sides_solver_state(kind, tmp_path, monkeypatch, rng):
    """Native or swapped for the first steps, native or swapped after the snapshot: the same weights."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.prototxt").write_text(NET_THAT_LEARNS)
    (tmp_path / "native.prototxt").write_text(
        f'net: "net.prototxt" type: "{kind}" base_lr: 0.001 lr_policy: "fixed" momentum: 0.9\n'
        "weight_decay: 0.01 momentum2: 0.99 iter_size: 2 max_iter: 100\n"
        'solver_mode: CPU snapshot_after_train: false snapshot_prefix: "state"\n'
    )
    swap_file("native.prototxt", "swapped.prototxt")

    def solver(name):
        return getattr(caffe, f"{kind}Solver")(f"{name}.prototxt")

    def weights(solved):
        return [blob.data.copy() for blobs in solved.net.params.values() for blob in blobs]

    start = solver("native")
    for name, blobs in start.net.params.items():
        for blob in blobs:
            blob.data[...] = rng.uniform(0.3, 1, blob.data.shape) * (1 if name == "bn" else 0.2)
    start.net.save("start.caffemodel")
    outcomes = {}
    for first in ("native", "swapped"):
        learner = solver(first)
        learner.net.copy_from("start.caffemodel")
        learner.step(3)
        learner.snapshot()
        for second in ("native", "swapped"):
            other = solver(second)
            other.restore("state_iter_3.solverstate" if first == "native" else "state_ocl_iter_3.solverstate")
            for got, expected in zip(weights(other), weights(learner)):
                np.testing.assert_array_equal(got, expected)
            other.step(3)
            outcomes[first, second] = weights(other)
    begun = weights(start)
    for pair, result in outcomes.items():
        moved = [np.abs(new - old).max() for new, old in zip(result, begun)]
        assert 1e-3 < max(moved) < 10, pair
        for got, expected in zip(result, outcomes["native", "native"]):
            np.testing.assert_allclose(got, expected, err_msg=str(pair), **TOLERANCE)
