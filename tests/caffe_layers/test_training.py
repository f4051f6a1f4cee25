"""Whole nets under Caffe's own solver: the same seed, the same loss curve, models and snapshots that fit both ways."""

from __future__ import annotations

import numpy as np
import pytest

caffe = pytest.importorskip("caffe")

from clgraft.caffe_layers.swap import swap_net
from tests.caffe_layers.caffe_nets import TEST, close, inputs, layer, load, native_learns, written

STATISTICS = "param { lr_mult: 0 decay_mult: 0 } " * 3
# Without a bias: in front of a batch norm its gradient is rounding, which Adam would scale up to full steps.
WEIGHTS = "param { lr_mult: 1.5 decay_mult: 1 }"
XAVIER = 'weight_filler { type: "xavier" } bias_filler { type: "uniform" min: -0.1 max: 0.1 }'
SHAPE = (8, 3, 12, 12)
CLASSES = 4
SOLVER_OF_ONE_STEP = (
    'net: "{}" base_lr: 1 lr_policy: "fixed" random_seed: 4 clip_gradients: 0.01 solver_mode: CPU '
    "snapshot_after_train: false"
)


OURS = pytest.mark.parametrize("ours", [True, "regions"], ids=["layers", "regions"])


def network(ours: object, batch_norm: bool) -> str:
    """Return a small residual net with every family of layers, in place where that is usual, and shared weights.

    Native, some of its layers ours, or all of them in regions.
    """
    if ours == "regions":
        text, report = swap_net(network(False, batch_norm), regions=True, keep=["score"])
        assert [region.hidden[:2] for region in report.regions] == [["conv1", "pool1"]]
        return text

    def conv(name: str, bottom: str, fields: str, frame: str = WEIGHTS, kind: str = "Convolution") -> str:
        cls = "OclDepthwiseConvolution" if "group" in fields else None
        parameters = f"convolution_param {{ {fields} {XAVIER} }}"
        return layer(kind, parameters, ours=ours, name=name, bottoms=[bottom], tops=[name], frame=frame, cls=cls)

    def in_place(kind: str, name: str, blob: str, parameters: str = "", frame: str = "") -> str:
        return layer(kind, parameters, ours=ours, name=name, bottoms=[blob], tops=[blob], frame=frame)

    def norm(name: str, blob: str) -> str:
        affine = in_place("Scale", f"{name}_scale", blob, "scale_param { bias_term: true }")
        return (in_place("BatchNorm", f"{name}_bn", blob, frame=STATISTICS) if batch_norm else "") + affine

    def op(kind: str, name: str, bottoms: str, parameters: str = "", ours: bool = False) -> str:
        return layer(kind, parameters, ours=ours, name=name, bottoms=bottoms.split(), tops=[name])

    shared = 'param { name: "w" lr_mult: 1 } param { name: "b" lr_mult: 2 }'
    return (
        inputs({"data": SHAPE, "label": (SHAPE[0],)})
        + conv("conv1", "data", "num_output: 8 kernel_size: 3 pad: 1 bias_term: false")
        + norm("conv1", "conv1")
        + in_place("ReLU", "relu1", "conv1", "relu_param { negative_slope: 0.1 }")
        + op("Pooling", "pool1", "conv1", "pooling_param { kernel_size: 2 stride: 2 }")
        + conv("depthwise", "pool1", "num_output: 8 group: 8 kernel_size: 3 pad: 1 bias_term: false")
        + norm("depthwise", "depthwise")
        + in_place("PReLU", "prelu", "depthwise")
        + conv("shared1", "depthwise", "num_output: 8 kernel_size: 1", shared)
        + in_place("ELU", "elu", "shared1")
        + conv("shared2", "shared1", "num_output: 8 kernel_size: 1", shared)
        + op("Eltwise", "sum", "shared2 pool1", "eltwise_param { coeff: 0.5 coeff: 1 }", ours)
        + op("TanH", "tanh", "sum", "", ours)
        + op("Pooling", "pool2", "tanh", "pooling_param { pool: AVE global_pooling: true }")
        + op("InnerProduct", "score", "pool2", f"inner_product_param {{ num_output: {CLASSES} {XAVIER} }}")
        + op("SoftmaxWithLoss", "loss", "score label")
    )


def solver_of(net: str, folder: object, extra: str = ""):
    """Make a solver with a train and a test net."""
    text = (
        f"net_param {{ {net} }} lr_policy: 'fixed' momentum: 0.9 weight_decay: 0.001 random_seed: 17 "
        f"test_iter: 1 test_interval: 1000000 test_initialization: false display: 0 solver_mode: CPU "
        f"snapshot_prefix: '{folder}/snap' base_lr: {0.001 if 'Adam' in extra else 0.1} {extra}"
    )
    with written(text) as path:
        return caffe.get_solver(path)


def batch(step: int) -> tuple:
    random = np.random.default_rng(step)
    labels = random.integers(0, CLASSES, SHAPE[0])
    data = random.standard_normal(SHAPE)
    for image, label in zip(data, labels):
        image[[label] if label < 3 else [0, 1, 2]] += 2  # each class lights up other channels
    return data, labels


def train(solver, steps: range) -> list:
    """Run some steps; return the losses."""
    losses = []
    for step in steps:
        data, labels = batch(step)
        solver.net.blobs["data"].data[...] = data
        solver.net.blobs["label"].data[...] = labels
        solver.step(1)
        losses.append(float(solver.net.blobs["loss"].data))
    return losses


def parameters(net) -> list:
    return [blob.data.copy() for blobs in net.params.values() for blob in blobs]


@pytest.mark.parametrize(
    "extra", ["", "iter_size: 3", "type: 'Adam' momentum2: 0.99"], ids=["SGD", "iter_size", "Adam"]
)
@OURS
def test_training_follows_the_native_loss_curve(ours, extra, tmp_path):
    batch_norm = native_learns()
    solvers = [solver_of(network(side, batch_norm), tmp_path, extra) for side in (False, ours)]
    for native, ours in zip(parameters(solvers[0].net), parameters(solvers[1].net)):
        assert np.array_equal(native, ours)
    curves = [train(solver, range(25)) for solver in solvers]
    np.testing.assert_allclose(curves[1][:5], curves[0][:5], rtol=1e-4)
    np.testing.assert_allclose(curves[1], curves[0], rtol=0.02, atol=0.01)
    for native, ours in zip(parameters(solvers[0].net), parameters(solvers[1].net)):
        close(ours, native, "weights after training", 0.02)
    if not extra:
        assert np.mean(curves[1][-5:]) < 0.5 * np.mean(curves[1][:3])


@OURS
def test_test_net_shares_the_weights_of_the_train_net(ours, tmp_path):
    batch_norm = native_learns()
    scores = []
    for side in (False, ours):
        solver = solver_of(network(side, batch_norm), tmp_path)
        train(solver, range(5))
        tester = solver.test_nets[0]
        tester.share_with(solver.net)
        data, labels = batch(99)
        tester.blobs["data"].data[...] = data
        tester.blobs["label"].data[...] = labels
        tester.forward()
        scores.append(tester.blobs["score"].data.copy())
    close(scores[1], scores[0], "score", 2e-3)


@OURS
@pytest.mark.parametrize("trained_by_ours", [False, True])
def test_models_load_in_both_directions(trained_by_ours, ours, tmp_path):
    batch_norm = native_learns()
    solver = solver_of(network(trained_by_ours and ours, batch_norm), tmp_path)
    train(solver, range(5))
    model = str(tmp_path / "model.caffemodel")
    solver.net.save(model)
    data, labels = batch(50)
    scores = []
    for side in (False, ours):
        net = load(network(side, batch_norm), TEST, model)
        for blob, saved in zip(parameters(net), parameters(solver.net)):
            assert np.array_equal(blob, saved)
        net.blobs["data"].data[...] = data
        net.blobs["label"].data[...] = labels
        net.forward()
        scores.append(net.blobs["score"].data.copy())
    close(scores[1], scores[0], "score", 1e-4)


@OURS
@pytest.mark.parametrize("resumed_by_ours", [False, True])
def test_snapshots_resume_in_both_directions(resumed_by_ours, ours, tmp_path):
    """Half by the one, half by the other: the same curve as by one alone."""
    batch_norm = native_learns()
    first = solver_of(network(not resumed_by_ours and ours, batch_norm), tmp_path)
    train(first, range(4))
    first.snapshot()
    expected = train(first, range(4, 8))
    second = solver_of(network(resumed_by_ours and ours, batch_norm), tmp_path)
    second.restore(str(tmp_path / "snap_iter_4.solverstate"))
    assert second.iter == 4
    np.testing.assert_allclose(train(second, range(4, 8)), expected, rtol=1e-3)


@OURS
def test_two_trainings_give_the_same_bits(ours, tmp_path):
    runs = []
    for _ in range(2):
        solver = solver_of(network(ours, True), tmp_path)
        train(solver, range(4))
        runs.append(parameters(solver.net))
    assert all(np.array_equal(first, second) for first, second in zip(*runs))


FREEZABLE = {
    "Convolution": (f"convolution_param {{ num_output: 3 kernel_size: 3 pad: 1 {XAVIER} }}", 2),
    "Deconvolution": (f"convolution_param {{ num_output: 3 kernel_size: 3 pad: 1 {XAVIER} }}", 2),
    "InnerProduct": (f"inner_product_param {{ num_output: 3 {XAVIER} }}", 2),
    "Scale": ("scale_param { bias_term: true }", 2),
    "Bias": ("", 1),
    "PReLU": ("", 1),
}


@pytest.mark.parametrize("forced", [False, True], ids=["", "forced"])
@pytest.mark.parametrize("frozen", ["all", "first"])
@pytest.mark.parametrize("kind", FREEZABLE)
def test_gradients_of_frozen_blobs_take_no_part_in_clipping(kind, frozen, forced):
    """`clip_gradients` scales a step by the norm of all gradients: one that Caffe does not compute must not count."""
    parameters, blobs = FREEZABLE[kind]
    count = blobs if frozen == "all" else 1
    params = "param { lr_mult: 0 } " * count + "param { lr_mult: 2 } " * (blobs - count)
    ending = f"inner_product_param {{ num_output: 2 {XAVIER} }}"
    text = (
        inputs({"x": (4, 3, 6, 6), "t": (4, 2)})
        + layer("InnerProduct", f"inner_product_param {{ num_output: 5 axis: 3 {XAVIER} }}", ours=False, name="first")
        + layer(kind, parameters, ours=False, name="frozen", bottoms=["y"], tops=["z"], frame=params)
        + layer("InnerProduct", ending, ours=False, name="last", bottoms=["z"], tops=["s"])
        + layer("EuclideanLoss", ours=False, name="loss", bottoms=["s", "t"], tops=["l"])
        + f"force_backward: {str(forced).lower()}"
    )
    steps = []
    for net in (text, swap_net(text)[0]):
        with written(net) as path, written(SOLVER_OF_ONE_STEP.format(path)) as solver_path:
            solver = caffe.SGDSolver(solver_path)
        random = np.random.default_rng(5)
        for name in ("x", "t"):
            solver.net.blobs[name].data[...] = random.standard_normal(solver.net.blobs[name].data.shape)
        before = solver.net.params["last"][0].data.copy()
        solver.step(1)
        steps.append(solver.net.params["last"][0].data - before)
    assert np.abs(steps[0]).max() > 1e-4
    np.testing.assert_allclose(steps[1], steps[0], rtol=1e-3, atol=1e-6)
