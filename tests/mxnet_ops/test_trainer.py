"""`clgraft.mxnet_ops.Trainer`: steps are those of Gluon's trainer, on every kind of net."""

from __future__ import annotations

import dataclasses
import gc

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.contrib.amp.loss_scaler import LossScaler
from mxnet.gluon import nn

import clgraft.mxnet_ops as ops
from clgraft.core import ProblemError
from clgraft.mxnet_ops.engine import residents
from clgraft.mxnet_ops.engine.residents import resident_of
from tests.mxnet_ops.operator_checks import random
from tests.mxnet_ops.trainers import BATCH, OPTIMIZERS, STATIC, Run, batches, convolutions, dense, equal, normed, pair


@pytest.mark.parametrize("optimizer, given", OPTIMIZERS, ids=lambda value: value if isinstance(value, str) else "")
def test_ten_steps_are_those_of_gluon(staged, rng, optimizer, given):
    one, other = pair(optimizer=optimizer, given=given)
    for run in (one, other):  # schedules and multipliers of parameters
        run.parameters[0].lr_mult, run.parameters[3].wd_mult = 0.5, 0.0
        if optimizer != "adadelta":
            rate = given["learning_rate"]
            run.trainer.optimizer.lr_scheduler = mx.lr_scheduler.FactorScheduler(step=3, factor=0.5, base_lr=rate)
    for number, (x, y) in enumerate(batches(rng, 10)):
        if number == 5 and optimizer == "sgd":
            for run in (one, other):
                run.trainer.optimizer.momentum *= 0.5
        if number == 7 and optimizer != "adadelta":
            for run in (one, other):
                run.trainer.optimizer.lr_scheduler = None
                run.trainer.set_learning_rate(rate / 4)
        losses = [run.step(x, y).asnumpy() for run in (one, other)]
        np.testing.assert_allclose(losses[1], losses[0], 2e-5, 1e-6)
    assert other.places == {"device"} and other.trainer.host == {}
    equal(one, other)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "name, size, steps",
    [
        ("mobilenetv2_0.25", 96, 1),  # after a second step its batch norms make 0.01 of the last digit
        ("vgg16", 32, 3),
    ],
)
def test_nets_of_the_zoo(staged, rng, name, size, steps):
    def make():
        return gluon.model_zoo.vision.get_model(name, classes=3, prefix="net_")

    one, other = pair(make, given={"learning_rate": 0.01, "momentum": 0.9, "wd": 1e-4}, shape=(3, size, size))
    for x, y in batches(rng, steps, (3, size, size)):
        for run in (one, other):
            mx.random.seed(5)  # dropout takes the same elements
            run.step(x, y)
    assert other.places == {"device"} and other.trainer.host == {}
    equal(one, other, 1e-3, 1e-5)


def test_gradients_of_weights_on_a_second_queue(staged, monkeypatch, rng):
    """The same bits as on one queue, of steps that change what the next one reads."""

    def make():
        net = nn.HybridSequential(prefix="net_")
        with net.name_scope():
            for channels in (4, 8, 5):
                net.add(nn.Conv2D(channels, 3, padding=1, use_bias=False), nn.BatchNorm(), nn.Activation("relu"))
            net.add(nn.Dense(3))
        return net

    shape = (3, 9, 9)
    staged.device = dataclasses.replace(staged.device, overlaps_queues=True)
    given = {"learning_rate": 0.05, "momentum": 0.9}
    steps, start, runs, counts = [*batches(rng, 5, shape)], [], [], []
    for switches in ("", "-queues"):
        monkeypatch.setenv("CLGRAFT_GRAPH", switches)
        before = {id(graph) for graph in staged._living()}
        run = Run(make, given=given, shape=shape)
        start = start or [parameter.data().copy() for parameter in run.parameters]
        for parameter, array in zip(run.parameters, start):
            parameter.set_data(array)
        for x, y in steps:
            run.step(x, y)
        runs.append(run)
        made = [graph for graph in staged._living() if id(graph) not in before]
        counts.append(sum(report.second_queue for graph in made for report in graph.reports()))
    assert counts[0] >= 2 and counts[1] == 0
    for a, b in zip(*(run.parameters for run in runs)):
        assert np.array_equal(a.data().asnumpy(), b.data().asnumpy()), a.name


def test_moving_statistics_and_evaluation_in_between(staged, rng):
    shape = (3, 5, 5)
    one, other = pair(convolutions, shape=shape, given={"learning_rate": 0.05, "momentum": 0.9})
    for x, y in batches(rng, 4, shape):
        for run in (one, other):
            run.step(x, y)
        np.testing.assert_allclose(other.net(x).asnumpy(), one.net(x).asnumpy(), 1e-4, 1e-5)
    assert other.places <= {"device", "both"}
    equal(one, other, 1e-4, 1e-5)
    assert np.abs(other.parameters[3].data().asnumpy()).max() > 0


def test_only_inputs_and_outputs_cross_the_bus(staged, rng):
    run = Run(dense)
    x, y = next(batches(rng, 1))
    for _ in range(3):
        run.step(x, y)
    mx.nd.waitall()
    before = staged.counters()
    run.step(x, y)
    mx.nd.waitall()
    after = staged.counters()
    sent = after["bytes_to_device"] - before["bytes_to_device"]
    found = after["bytes_to_host"] - before["bytes_to_host"]
    assert sent <= (2 * x.size + 2 * y.size) * 4 and found <= 2 * y.size * 4, (sent, found)
    assert after["waits"] - before["waits"] == 1  # for the outputs of the forward pass, which the loss reads


def penalized_steps(runs, data):
    """Do steps whose loss has a penalty on a parameter, which MXNet computes."""
    for x, y in data:
        for run in runs:
            with autograd.record():
                penalty = (run.parameters[0].data() ** 2).sum()
                loss = run.loss(run.net(x), y) + penalty
            loss.backward()
            run.trainer.step(BATCH)


def test_a_parameter_that_others_read_too_goes_back_to_mxnet(staged, rng):
    one, other = pair(given={"learning_rate": 0.1, "momentum": 0.9}, outside=["net_dense0_weight"])
    assert other.trainer.host == {"net_dense0_weight": "it is one of the argument outside"}
    penalized_steps((one, other), batches(rng, 4))
    equal(one, other, 1e-4, 1e-6)
    with pytest.raises(ProblemError, match="got outside 'weight'"):
        ops.Trainer(other.net.collect_params(), "sgd", outside=["weight"])

    one, other = pair(given={"learning_rate": 0.1, "momentum": 0.9})
    x, y = next(batches(rng, 1))
    for run in (one, other):
        run.step(x, y)
    with autograd.record(), pytest.raises(ProblemError, match="an operator outside of regions reads"):
        out = other.net(x)
        out + (other.parameters[0].data() ** 2).sum()
    mx.nd.waitall()
    penalized_steps((one, other), batches(rng, 3))  # read before: the parameter is MXNet's from here on
    equal(one, other, 1e-4, 1e-6)
    assert list(other.trainer.host) == ["net_dense0_weight"]


def test_a_net_that_is_not_hybridized(staged, rng):
    one, other = pair(given={"learning_rate": 0.1, "momentum": 0.9})
    for active in (True, False, True):
        for x, y in batches(rng, 2):
            for run in (one, other):
                run.net.hybridize(active, **STATIC)
                run.step(x, y)
        equal(one, other, 1e-4, 1e-6)
    assert set(other.trainer.host.values()) == {"an operator outside of regions reads it under autograd.record"}


@pytest.mark.parametrize(
    "optimizer, reason",
    [
        ("signum", "the optimizer Signum is not served on devices"),
        (mx.optimizer.RMSProp(clip_weights=0.1), "clip_weights of RMSProp is not served on devices"),
    ],
    ids=["signum", "clip_weights"],
)
def test_what_is_not_served_is_mxnets_by_name(staged, rng, optimizer, reason):
    run = Run(dense, optimizer=optimizer, given=None)
    for x, y in batches(rng, 2):
        run.step(x, y)
    assert set(run.trainer.host.values()) == {reason} and run.places == {None}


def test_a_new_trainer_takes_over(staged, rng):
    one, other = pair(given={"learning_rate": 0.1, "momentum": 0.9})
    for optimizer in ("sgd", "adam"):
        for run, kind in ((one, gluon.Trainer), (other, ops.Trainer)):
            run.trainer = kind(run.net.collect_params(), optimizer, {"learning_rate": 0.02})
        for x, y in batches(rng, 3):
            for run in (one, other):
                run.step(x, y)
    assert other.places == {"device"}
    equal(one, other, 1e-4, 1e-6)


def test_nothing_is_held_after_a_net(staged, rng):
    gc.collect()
    before = len(residents._known)
    run = Run(dense, given={"momentum": 0.9})
    for x, y in batches(rng, 2):
        run.step(x, y)
    assert len(residents._known) > before
    del run
    mx.nd.waitall()
    gc.collect()
    assert len(residents._known) == before


def test_shapes_that_are_known_late_and_frozen_inference(staged, rng):
    net = dense()
    net.initialize()
    ops.swap_block(net, regions=True, frozen=True)
    net.hybridize()
    trainer = ops.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    for x, y in batches(rng, 3):
        with autograd.record():
            loss = gluon.loss.L2Loss()(net(x), y)
        loss.backward()
        trainer.step(BATCH)
        first = net(x).asnumpy()
        with autograd.record(train_mode=False):
            second = net(x)
        np.testing.assert_allclose(first, second.asnumpy(), 1e-5, 1e-6)
    assert trainer.host == {}


def test_on_a_processor_it_is_gluons_trainer(context, rng):
    if context.device.host_access == "staged":
        pytest.skip("a device with memory of its own")
    one, other = pair(given={"learning_rate": 0.1, "momentum": 0.9})
    assert type(other.trainer.optimizer) is ops.OclSGD
    for x, y in batches(rng, 3):
        for run in (one, other):
            run.step(x, y)
    assert set(other.trainer.host.values()) == {"the device uses the host's memory"} and other.places == {None}
    equal(one, other, 1e-6, 1e-7)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_amps_scaler_is_told_of_infinite_gradients(staged, rng, dtype):
    one, other = pair(given={"learning_rate": 0.1, "momentum": 0.9, "multi_precision": True}, dtype=dtype)
    for run in (one, other):
        run.trainer._amp_loss_scaler = LossScaler()
    for number, (x, y) in enumerate(batches(rng, 5)):
        for run in (one, other):
            run.step(x.astype(dtype), (y * np.inf if number == 2 else y).astype(dtype))
    assert [run.trainer._amp_loss_scaler._next_loss_scale for run in (one, other)] == [2.0**15] * 2
    assert {resident_of(parameter._grad[0]).place for parameter in other.parameters} == {"device"}
    assert other.trainer.optimizer._index_update_count == one.trainer.optimizer._index_update_count
    equal(one, other, *((1e-4, 1e-6) if dtype == "float32" else (5e-3, 5e-3)))


def test_products_in_16_bits(staged, rng):
    one, other = pair(given={"learning_rate": 0.1}, precision="float16")
    for x, y in batches(rng, 3):
        losses = [run.step(x, y).asnumpy() for run in (one, other)]
        np.testing.assert_allclose(losses[1], losses[0], 2e-3, 2e-3)
    assert other.places == {"device"}
    equal(one, other, 5e-3, 5e-3)


# parameters in float16


@pytest.mark.parametrize(
    "optimizer, given", OPTIMIZERS[1:3] + OPTIMIZERS[4:], ids=lambda v: v if type(v) is str else ""
)
def test_float16_with_copies_in_float32(staged, rng, tmp_path, optimizer, given):
    one, other = pair(normed, optimizer=optimizer, given={**given, "multi_precision": True}, dtype="float16")
    for number, (x, y) in enumerate(batches(rng, 5)):
        x, y = x.astype("float16"), y.astype("float16")
        if number == 3:
            other.trainer.save_states(str(tmp_path / "states"))
            for run in (one, other):
                run.trainer.load_states(str(tmp_path / "states"))
        losses = [run.step(x, y).asnumpy() for run in (one, other)]
        np.testing.assert_allclose(losses[1], losses[0], 5e-3, 5e-3)
    assert other.places == {"device"} and other.trainer.host == {}
    equal(one, other, 5e-3, 5e-3)
    assert {parameter.data().dtype for parameter in other.parameters} == {np.float16, np.float32}


def test_static_memory_gives_mxnets_own_gradients(context, rng):
    """MXNet's nets with both static options have wrong gradients where backwards of two calls follow each other."""
    data = [mx.nd.array(random(rng, BATCH, n)) for n in (5, 5, 3, 3)]
    values, found = [random(rng, *shape) for shape in ((6, 5), (6,), (3, 6), (3,))], []
    for swap, static in ((False, {}), (False, STATIC), (True, STATIC)):
        net = dense()
        net.initialize()
        net(data[0])
        for parameter, value in zip(net.collect_params().values(), values):
            parameter.set_data(mx.nd.array(value))
        if swap:
            ops.swap_block(net, regions=True)
        net.hybridize(**static)
        loss, own = gluon.loss.L2Loss(), []
        for separate in (False, True):
            with autograd.record():
                losses = [loss(net(x), y) for x, y in zip(data[:2], data[2:])]
            if separate:
                for one in losses:
                    one.backward()
            else:
                autograd.backward(losses)
            own.append(np.concatenate([p.grad().asnumpy().ravel() for p in net.collect_params().values()]))
        found.append(own)
    right, mxnets, ours = found
    np.testing.assert_allclose(mxnets[0], right[0], 1e-4, 1e-5)
    assert np.abs(mxnets[1] - right[1]).max() > 0.01
    np.testing.assert_allclose(np.concatenate(ours), np.concatenate(mxnets), 1e-4, 1e-5)
