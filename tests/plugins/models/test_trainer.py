"""Trainers: losses, gradients and updates of nets of MXNet and Caffe without their frameworks, and what stays."""

from __future__ import annotations

import dataclasses
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyopencl as cl
import pytest

from clgraft import core
from clgraft.caffe_layers.nets.net import CaffeNet, read_net
from clgraft.caffe_layers.nets.weights import read_caffemodel
from clgraft.core.errors import ClgraftError
from clgraft.core.model import ModelError, NetSession, Store, Trainer
from clgraft.core.nn import losses
from clgraft.core.session.context import Context
from tests.plugins.models.symbols import read_named, session, symbol
from tests.plugins.models.test_caffe_nets import SMALL, WEIGHTS
from tests.plugins.models.test_mxnet_nets import random

LINES = [
    ("FullyConnected", "one", {"num_hidden": 6}, ["data", "one_weight", "one_bias"]),
    ("BatchNorm", "bn", {"fix_gamma": False}, ["one", "bn_gamma", "bn_beta", "bn_moving_mean", "bn_moving_var"]),
    ("Activation", "relu", {"act_type": "relu"}, ["bn"]),
    ("Dropout", "drop", {"p": 0.0}, ["relu"]),
    ("FullyConnected", "two", {"num_hidden": 3}, ["drop", "two_weight", "two_bias"]),
    ("SoftmaxOutput", "softmax", {}, ["two", "softmax_label"]),
]
PARAMETERS = {
    "one_weight": random(6, 5, seed=1),
    "one_bias": random(6, seed=2),
    "bn_gamma": np.ones(6, np.float32),
    "bn_beta": np.zeros(6, np.float32),
    "bn_moving_mean": np.zeros(6, np.float32),
    "bn_moving_var": np.ones(6, np.float32),
    "two_weight": random(3, 6, seed=3),
    "two_bias": random(3, seed=4),
}
X, LABELS = random(8, 5, seed=5), np.arange(8, dtype=np.float32) % 3


def forward(values: dict[str, np.ndarray], x: np.ndarray, moving: bool = False) -> np.ndarray:
    """Return the probabilities of the small net in double precision."""
    p = {name: array.astype(np.float64) for name, array in values.items()}
    one = x @ p["one_weight"].T + p["one_bias"]
    mean, var = (p["bn_moving_mean"], p["bn_moving_var"]) if moving else (one.mean(0), one.var(0))
    hidden = np.maximum((one - mean) / np.sqrt(var + 1e-3) * p["bn_gamma"] + p["bn_beta"], 0)
    two = hidden @ p["two_weight"].T + p["two_bias"]
    found = np.exp(two - two.max(1, keepdims=True))
    return found / found.sum(1, keepdims=True)


def loss(values: dict[str, np.ndarray]) -> float:
    return float(-np.log(forward(values, X)[np.arange(8), LABELS.astype(int)]).mean())


def test_a_step_descends_by_the_gradient_and_the_session_sees_it(tmp_path):
    net = session(symbol(LINES), PARAMETERS)
    trainer = net.trainer("sgd", lr=0.1, rescale_grad=1 / 8)
    batch = {"data": X, "softmax_label": LABELS}
    assert trainer.loss(batch) == pytest.approx(loss(PARAMETERS), rel=1e-5)
    before = trainer.parameters
    assert trainer.step(batch) == pytest.approx(loss(PARAMETERS), rel=1e-5)
    after = trainer.parameters
    for name in ("one_weight", "bn_gamma", "bn_beta", "two_weight", "two_bias"):
        place = np.unravel_index(np.abs(after[name] - before[name]).argmax(), after[name].shape)
        changed = {end: {**before, name: before[name].astype(np.float64)} for end in (-1, 1)}
        for end, each in changed.items():
            each[name][place] += end * 1e-4
        slope = (loss(changed[1]) - loss(changed[-1])) / 2e-4
        assert before[name][place] - after[name][place] == pytest.approx(0.1 * slope, rel=2e-3, abs=1e-6), name
    one = X.astype(np.float64) @ PARAMETERS["one_weight"].T + PARAMETERS["one_bias"]
    expected = 0.9 * before["bn_moving_mean"] + 0.1 * one.mean(0)
    np.testing.assert_allclose(after["bn_moving_mean"], expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(net.run({"data": X})["softmax_output"], forward(after, X, moving=True), atol=1e-5)
    np.testing.assert_array_equal(net.parameters["two_bias"], after["two_bias"])
    trainer.save(tmp_path / "net.params")
    saved = read_named(tmp_path / "net.params")
    assert all(np.array_equal(saved[name], array) for name, array in after.items())


def test_sums_of_gradients_schedules_frozen_parameters_and_saved_states(tmp_path):
    batch = {"data": X, "softmax_label": LABELS}
    options = {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01, "clip_norm": 0.5}
    whole = session(symbol(LINES), PARAMETERS).trainer("sgd", rescale_grad=1 / 8, frozen=["one_weight"], **options)
    parts = session(symbol(LINES), PARAMETERS).trainer("sgd", rescale_grad=1 / 16, frozen=["one_weight"], **options)
    for lr in (0.05, 0.02):
        whole.step(batch, lr=lr)
        parts.step(batch, lr=lr, update=False)
        parts.step(batch)
    a, b = whole.parameters, parts.parameters
    np.testing.assert_array_equal(a["one_weight"], PARAMETERS["one_weight"])
    for name in ("two_weight", "bn_gamma"):
        assert np.abs(a[name] - PARAMETERS[name]).max() > 1e-4
    whole.save_states(tmp_path / "states.npz")
    again = session(symbol(LINES), a).trainer("sgd", rescale_grad=1 / 8, frozen=["one_weight"], **options)
    again.load_states(tmp_path / "states.npz")
    again.lr = whole.lr
    whole.step(batch)
    again.step(batch)
    assert again.steps == whole.steps == 3
    for name, array in whole.parameters.items():
        np.testing.assert_array_equal(again.parameters[name], array, err_msg=name)
    assert b.keys() == a.keys()


def test_losses_by_name_and_by_function():
    lines = LINES[:-1]
    inputs = {"data": X, "label": LABELS}
    named = session(symbol(lines), PARAMETERS).trainer("sgd", lr=0.1, loss="softmax_cross_entropy")
    own = session(symbol(LINES), PARAMETERS).trainer("sgd", lr=0.1, rescale_grad=1 / 8)
    assert named.step(inputs) == pytest.approx(own.step({"data": X, "softmax_label": LABELS}), rel=1e-6)
    for name, array in own.parameters.items():
        np.testing.assert_allclose(named.parameters[name], array, rtol=1e-5, atol=1e-6, err_msg=name)

    def squares(build, outputs, given):
        return losses.summed(build, "y0 = (x0 - x1) * (x0 - x1);", outputs["two_output"], given["data"])

    wide = [(*lines[-1][:2], {"num_hidden": 5}, lines[-1][3])]
    values = {**PARAMETERS, "two_weight": random(5, 6, seed=6), "two_bias": random(5, seed=7)}
    trainer = session(symbol([*lines[:-1], *wide]), values).trainer("adam", lr=0.01, loss=squares)
    found = [trainer.step({"data": X}) for _ in range(20)]
    assert found[-1] < 0.7 * found[0]
    target = session(symbol(lines), PARAMETERS).trainer("adam", lr=0.01, loss="l2")
    assert target.step({"data": X, "label": random(8, 3)}) > 0


def test_dropout_draws_anew_and_repeats_with_its_seed():
    lines = [*LINES[:3], ("Dropout", "drop", {"p": 0.5}, ["relu"]), *LINES[4:]]
    batch = {"data": X, "softmax_label": LABELS}
    runs = []
    for seed in (1, 1, 2):
        trainer = session(symbol(lines), PARAMETERS).trainer("sgd", lr=0.0, seed=seed)
        runs.append([trainer.step(batch) for _ in range(3)])
    assert runs[0] == runs[1] != runs[2] and len(set(runs[0])) == 3


def test_a_net_of_caffe_learns_and_is_saved(tmp_path):
    text = SMALL.replace('name: "prob" type: "Softmax"', 'name: "prob" type: "Power"').encode()
    net = NetSession(CaffeNet(read_net(text), WEIGHTS))
    trainer = net.trainer("adam", lr=0.05, loss="l2")
    x, target = random(2, 3, 8, 8, seed=1), np.float32(0.5) * np.sign(random(2, 5, seed=8))
    found = [trainer.step({"data": x, "label": target}) for _ in range(40)]
    assert found[-1] < 0.5 * found[0]
    assert trainer.parameters["bn[2]"][0] > WEIGHTS[1].blobs[2][0]
    trainer.save(tmp_path / "net.caffemodel")
    again = NetSession(CaffeNet(read_net(text), read_caffemodel(tmp_path / "net.caffemodel")))
    expected = net.run({"data": x})["prob"]
    np.testing.assert_allclose(again.run({"data": x})["prob"], expected, atol=1e-6 * np.abs(expected).max())


def test_what_is_refused():
    net = session(symbol(LINES), PARAMETERS)
    with pytest.raises(ModelError, match="loss 'hinge', expected one of"):
        net.trainer(loss="hinge")
    with pytest.raises(ModelError, match=r"frozen of 'one_wieght'.*one_weight"):
        net.trainer(frozen=["one_wieght"])
    with pytest.raises(ClgraftError, match="optimizer 'sdg'"):
        net.trainer("sdg")
    trainer = net.trainer()
    with pytest.raises(ModelError, match=r"got inputs .* of a step, expected"):
        trainer.step({"data": X})
    with pytest.raises(ModelError, match="net without a loss"):
        session(symbol(LINES[:-1]), PARAMETERS).trainer().step({"data": X})
    half = session(symbol(LINES), PARAMETERS, precision="float16").trainer()
    with pytest.raises(ModelError, match="of float16, expected float32 to train"):
        half.step({"data": X, "softmax_label": LABELS})


class Twins:
    """Two processes with the same batch."""

    rank, size = 0, 2

    def sum(self, array: np.ndarray) -> None:
        """Replace an array by the sum of both."""
        array += array

    def broadcast(self, array: np.ndarray) -> None:
        """Leave an array, which is the first one's."""


def staged() -> Context:
    """Return a context on the same device that is told it cannot reach host memory."""
    usual = core.context()
    device = dataclasses.replace(usual.device, host_access="staged")
    queue = cl.CommandQueue(usual.cl_context, usual.cl_device)
    return Context(usual.cl_context, usual.cl_device, queue, device=device)


@pytest.mark.parametrize("group", [None, Twins()], ids=["alone", "twins"])
def test_a_device_with_memory_of_its_own(group):
    """The same steps in arrays of pyopencl, as on a GPU."""
    near = session(symbol(LINES), PARAMETERS).trainer("adam", lr=0.01)
    net, context = session(symbol(LINES), PARAMETERS), staged()
    store = Store(net._net, context)
    far = Trainer(net._net.for_training(), context, store, "adam", lr=0.01, group=group)
    batch = {"data": X, "softmax_label": LABELS}
    for _ in range(3):
        assert far.step(batch) == pytest.approx(near.step(batch), rel=1e-6)
    for name, array in near.parameters.items():
        np.testing.assert_allclose(far.parameters[name], array, rtol=1e-5, atol=1e-6, err_msg=name)
    far.set_parameter("two_bias", np.ones(3))
    assert far.parameters["two_bias"].tolist() == [1, 1, 1]


@pytest.mark.parametrize("precision", ["float32", "float16"])
@pytest.mark.parametrize("kind", ["mxnet", "caffe"])
def test_gradients_of_weights_on_a_second_queue(kind, precision):
    """The same bits as on one queue, of steps that change what the next one reads."""
    make, batch, more = both_kinds()[kind]
    found, launches = [], []
    for passes in (None, "-queues"):
        context, net = staged(), make()
        context.device = dataclasses.replace(context.device, overlaps_queues=True)
        training, store = net._net.for_training(), Store(net._net, context)
        trainer = Trainer(training, context, store, "sgd", lr=0.02, passes=passes, precision=precision, **more)
        found.append(([trainer.step(batch) for _ in range(5)], trainer.parameters))
        launches.append(trainer.report({name: array.shape for name, array in batch.items()}).second_queue)
    (losses, parameters), (expected, others) = found
    assert launches[0] > launches[1] == 0
    assert losses == expected
    assert all(np.array_equal(parameters[name], array) for name, array in others.items())


@pytest.mark.parametrize("where", ["near", "far"])
def test_batches_that_are_sent_ahead(where):
    """The same bits as of steps that send their batch themselves, and no bytes of images in a step."""

    def made():
        net = session(symbol(LINES), PARAMETERS)
        context = staged() if where == "far" else core.context()
        return Trainer(net._net.for_training(), context, Store(net._net, context), "adam", lr=0.01), context

    (plain, _), (ahead, context) = made(), made()
    batches = [{"data": random(8, 5, seed=20 + i), "softmax_label": np.roll(LABELS, i)} for i in range(6)]
    expected = [plain.step(batch) for batch in batches]
    sent, found = ahead.send(batches[0]), []
    for following in [*batches[1:], batches[0]]:
        own, sent = sent, ahead.send(following)
        before = context.counters()
        found.append(ahead.step(own))
        after = context.counters()
        assert after["bytes_to_device"] - before["bytes_to_device"] == (16 if where == "far" else 0)  # dropout's key
        assert after["waits"] - before["waits"] == 1
    assert found == expected
    for name, array in plain.parameters.items():
        assert np.array_equal(ahead.parameters[name], array), name
    assert ahead.loss(sent) == plain.loss(batches[0])
    with pytest.raises(ModelError, match="a batch that a step has taken"):
        ahead.step(sent)
    with pytest.raises(ModelError, match=r"shape \(8, 4\) for input 'data'|expected"):
        ahead.step(ahead.send({"data": random(8, 4), "softmax_label": LABELS}))
    several = [ahead.send(batch) for batch in batches]  # each in memory of its own
    assert [ahead.step(one) for one in several] == [plain.step(batch) for batch in batches]


def test_what_a_step_looks_at_once_follows_changes():
    """Parameters, histories and factors that others change between steps count in the next one."""

    def trained(fresh: bool) -> Trainer:
        net = session(symbol(LINES), PARAMETERS)
        trainer = net.trainer("sgd", lr=0.05, momentum=0.9)
        for step in range(4):
            trainer.step({"data": X, "softmax_label": LABELS})
            if fresh:
                trainer._programs.clear()
            trainer.set_parameter("one_bias", np.full(6, 0.1 * step))
            trainer.set_history("momentum", "two_bias", np.full(3, 0.2))
            if step == 2:
                del trainer.factors["one_weight"]
        return trainer

    one, other = trained(False).parameters, trained(True).parameters
    assert all(np.array_equal(one[name], array) for name, array in other.items())


CAFFE = SMALL.replace('name: "prob" type: "Softmax"', 'name: "prob" type: "Power"').encode()


def both_kinds() -> dict[str, tuple]:
    """Return for a net with a loss of its own and one without what makes a session, and a batch."""
    target = np.float32(0.5) * np.sign(random(2, 5, seed=8))
    return {
        "mxnet": (lambda: session(symbol(LINES), PARAMETERS), {"data": X, "softmax_label": LABELS}, {}),
        "caffe": (
            lambda: NetSession(CaffeNet(read_net(CAFFE), WEIGHTS)),
            {"data": random(2, 3, 8, 8, seed=1), "label": target},
            {"loss": "l2"},
        ),
    }


@pytest.mark.parametrize("kind", ["mxnet", "caffe"])
def test_a_scale_of_losses_changes_nothing_and_16_bits_change_little(kind):
    make, batch, more = both_kinds()[kind]
    options = {"lr": 0.02, "momentum": 0.9, "weight_decay": 1e-3, "clip_norm": 0.3, **more}

    def trained(**extra):
        trainer = make().trainer("sgd", **options, **extra)
        found = []
        for _ in range(4):  # parts of an update, too
            trainer.step(batch, update=False)
            found.append(trainer.step(batch))
        return trainer, found

    plain, losses_of_it = trained()
    scaled, others = trained(loss_scale=1024)
    np.testing.assert_allclose(others, losses_of_it, rtol=1e-6)
    for name, array in plain.parameters.items():
        np.testing.assert_allclose(scaled.parameters[name], array, rtol=1e-5, atol=1e-6, err_msg=name)
    for precision in ("float16", "bfloat16"):
        assert make().trainer(precision=precision, **more).loss_scale == (2.0**16 if precision == "float16" else 1)
        small, found = trained(precision=precision, loss_scale=256 if precision == "float16" else None)
        assert small.skipped == 0
        assert found != losses_of_it
        np.testing.assert_allclose(found, losses_of_it, rtol=0.03, atol=0.01)
        assert all(array.dtype == np.float32 for array in small.parameters.values())


def test_a_step_with_infinite_gradients_changes_nothing_but_the_scale(tmp_path):
    lines = [("FullyConnected", "two", {"num_hidden": 3}, ["data", "two_weight", "two_bias"]), LINES[-1]]
    values = {"two_weight": random(3, 5, seed=3), "two_bias": random(3, seed=4)}
    trainer = session(symbol(lines), values).trainer("adam", lr=0.05, precision="float16")
    batch = {"data": 5 * X, "softmax_label": LABELS}
    first = trainer.step(batch)
    assert trainer.skipped == 1 and trainer.steps == 0 and trainer.loss_scale == 2.0**15
    for name, array in values.items():
        np.testing.assert_array_equal(trainer.parameters[name], array)
    assert not any(array.any() for each in trainer.histories.values() for array in each.values())
    found = [trainer.step(batch) for _ in range(40)]
    assert trainer.steps + trainer.skipped == 41 and 1 < trainer.skipped < 20
    assert found[-1] < 0.5 * first
    trainer.save_states(tmp_path / "states.npz")
    again = session(symbol(lines), values).trainer("adam", precision="float16")
    again.load_states(tmp_path / "states.npz")
    assert (again.loss_scale, again.skipped, again.steps) == (trainer.loss_scale, trainer.skipped, trainer.steps)
    with pytest.raises(ModelError, match="loss_scale 0, expected a positive number"):
        session(symbol(lines), values).trainer(loss_scale=0)


class Threads:
    """A group of two threads."""

    def __init__(self, rank: int, shared: dict) -> None:
        self.rank, self.size, self._shared = rank, 2, shared

    def _all(self, array: np.ndarray) -> list[np.ndarray]:
        self._shared[self.rank] = array.copy()
        self._shared["barrier"].wait()
        found = [self._shared[0], self._shared[1]]
        self._shared["barrier"].wait()
        return found

    def sum(self, array: np.ndarray) -> None:
        first, second = self._all(array)
        array[...] = first + second

    def broadcast(self, array: np.ndarray) -> None:
        array[...] = self._all(array)[0]


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_a_group_trains_as_one_with_the_whole_batch(precision):
    lines = [line for line in LINES if line[1] not in ("bn", "drop")]
    lines[1] = (*lines[1][:3], ["one"])
    lines[2] = (*lines[2][:3], ["relu", "two_weight", "two_bias"])
    values = {name: array for name, array in PARAMETERS.items() if "bn" not in name}
    scale = None if precision == "float32" else 256.0
    options = {"lr": 0.05, "momentum": 0.9, "precision": precision, "loss_scale": scale}
    whole = session(symbol(lines), values).trainer("sgd", rescale_grad=1 / 2, clip_norm=1.0, **options)
    shared = {"barrier": threading.Barrier(2, timeout=120)}

    def follow(rank: int):
        own = values if not rank else {name: 0 * array for name, array in values.items()}  # the first one's count
        group = Threads(rank, shared)
        trainer = session(symbol(lines), own).trainer("sgd", group=group, clip_norm=0.5, **options)
        half = slice(4 * rank, 4 * rank + 4)
        for _ in range(3):
            trainer.step({"data": X[half], "softmax_label": LABELS[half]})
        return trainer.parameters

    for _ in range(3):
        whole.step({"data": X, "softmax_label": LABELS})
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(follow, (0, 1))
    tolerance = 1e-5 if precision == "float32" else 5e-3
    for name, array in whole.parameters.items():
        np.testing.assert_array_equal(first[name], second[name])
        np.testing.assert_allclose(first[name], array, rtol=tolerance, atol=tolerance, err_msg=name)
        assert np.abs(array - values[name]).max() > 1e-3
