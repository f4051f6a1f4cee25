"""`clgraft.mxnet_ops.Trainer`: steps are those of Gluon's trainer, and parameters that are read are current."""

from __future__ import annotations

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

BATCH = 4
STATIC = {"static_alloc": True, "static_shape": True}


def dense(prefix: str = "net_") -> nn.HybridSequential:
    """Return a small net of dense layers, whose shapes follow from the first batch."""
    net = nn.HybridSequential(prefix=prefix)
    with net.name_scope():
        net.add(nn.Dense(6, activation="tanh"), nn.Dense(3))
    return net


def convolutions(prefix: str = "net_") -> nn.HybridSequential:
    """Return a small net with moving statistics."""
    net = nn.HybridSequential(prefix=prefix)
    with net.name_scope():
        net.add(nn.Conv2D(4, 3, padding=1, use_bias=False), nn.BatchNorm(), nn.Activation("relu"), nn.Dense(3))
    return net


def normed(prefix: str = "net_") -> nn.HybridSequential:
    """Return a small net whose batch norm stays float32 when it is cast to float16."""
    net = nn.HybridSequential(prefix=prefix)
    with net.name_scope():
        net.add(nn.Dense(6, use_bias=False), nn.BatchNorm(), nn.Activation("tanh"), nn.Dense(3))
    return net


class Run:
    """A net with its trainer."""

    def __init__(self, make, kind=None, optimizer="sgd", given=None, *, like=None, shape=(5,), **more):
        self.net = make()
        self.net.initialize(mx.init.Xavier())
        if like is not None:
            self.net(mx.nd.zeros((1, *shape)))
            for own, other in zip(self.parameters, like.parameters):
                own.set_data(other.data())
        ops.swap_block(self.net, regions=True, precision=more.pop("precision", None))
        self.net.hybridize(**STATIC)
        if like is None:
            self.net(mx.nd.zeros((1, *shape)))
        self.net.cast(more.pop("dtype", "float32"))
        self.trainer = (kind or ops.Trainer)(self.net.collect_params(), optimizer, dict(given or {}), **more)
        self.loss = gluon.loss.L2Loss()

    @property
    def parameters(self):
        return list(self.net.collect_params().values())

    def backward(self, x, y):
        with autograd.record():
            loss = self.loss(self.net(x), y)
        loss.backward()
        return loss

    def step(self, x, y, **more):
        loss = self.backward(x, y)
        self.trainer.step(BATCH, **more)
        return loss

    @property
    def places(self):
        found = [resident_of(parameter._data[0]) for parameter in self.parameters]
        return {None if one is None else one.place for one in found}


def pair(make=dense, optimizer="sgd", given=None, mxnets=None, **more):
    """Return a run with Gluon's trainer and one with ours, from the same parameters."""
    kept = {key: more.pop(key) for key in ("outside",) if key in more}
    one = Run(make, gluon.Trainer, mxnets or optimizer, given, **more)
    return one, Run(make, ops.Trainer, optimizer, given, like=one, **more, **kept)


def batches(rng, count, shape=(5,)):
    for _ in range(count):
        yield mx.nd.array(random(rng, BATCH, *shape)), mx.nd.array(random(rng, BATCH, 3))


def equal(one, other, rtol=2e-5, atol=2e-6):
    for a, b in zip(one.parameters, other.parameters):
        np.testing.assert_allclose(b.data().asnumpy(), a.data().asnumpy(), rtol, atol, err_msg=a.name)


OPTIMIZERS = [
    ("sgd", {"learning_rate": 0.1}),
    ("sgd", {"learning_rate": 0.1, "momentum": 0.9, "wd": 0.02, "clip_gradient": 0.1, "multi_precision": True}),
    ("nag", {"learning_rate": 0.1, "momentum": 0.9, "wd": 0.02}),
    ("nag", {"learning_rate": 0.1, "clip_gradient": 0.1}),
    ("adam", {"learning_rate": 0.02, "wd": 0.02, "clip_gradient": 0.1, "begin_num_update": 3}),
    ("ocl_adamw", {"learning_rate": 0.02, "wd": 0.02, "clip_gradient": 0.1}),
    ("rmsprop", {"learning_rate": 0.01, "wd": 0.02, "clip_gradient": 0.1}),
    ("rmsprop", {"learning_rate": 0.01, "centered": True}),
    ("adagrad", {"learning_rate": 0.1, "wd": 0.02, "clip_gradient": 0.1}),
    ("adadelta", {"wd": 0.002, "clip_gradient": 0.1}),
]


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


def test_every_way_to_read_a_parameter(staged, rng, tmp_path):
    one, other = pair(given={"learning_rate": 0.1, "momentum": 0.9})
    for x, y in batches(rng, 2):
        for run in (one, other):
            run.step(x, y)
    kept = other.parameters[0].data()
    reads = {
        "data": lambda run: run.parameters[0].data().asnumpy(),
        "list_data": lambda run: run.parameters[1].list_data()[0].asnumpy(),
        "grad": lambda run: run.parameters[0].grad().asnumpy(),
        "list_grad": lambda run: run.parameters[1].list_grad()[0].asnumpy(),
        "grad of data": lambda run: run.parameters[2].data().grad.asnumpy(),
        "reduce": lambda run: run.parameters[2]._reduce().asnumpy(),
        "operator": lambda run: (run.parameters[3].data() * 2).asnumpy(),
        "norm": lambda run: np.float32(gluon.utils.clip_global_norm([p.grad() for p in run.parameters], 1e9)),
        "slice": lambda run: run.parameters[0].data()[1:2].asnumpy(),
    }
    for name, read in reads.items():
        ((x, y),) = batches(rng, 1)
        for run in (one, other):
            run.step(x, y)
        np.testing.assert_allclose(read(other), read(one), 1e-4, 1e-6, err_msg=name)
    ((x, y),) = batches(rng, 1)
    for run in (one, other):
        run.step(x, y)
    np.testing.assert_allclose(kept.asnumpy(), one.parameters[0].data().asnumpy(), 1e-4, 1e-6)
    for run, name in ((one, "one"), (other, "other")):
        run.step(x, y)
        run.net.save_parameters(str(tmp_path / f"{name}.params"))
        run.step(x, y)
        run.net.export(str(tmp_path / name))
    for ending in (".params", "-0000.params"):
        files = [mx.nd.load(str(tmp_path / f"{name}{ending}")) for name in ("one", "other")]
        for a, b in zip(files[0].values(), files[1].values()):
            np.testing.assert_allclose(b.asnumpy(), a.asnumpy(), 1e-4, 1e-6)


def test_every_way_to_write_a_parameter(staged, rng):
    one, other = pair(given={"learning_rate": 0.1})
    values = random(rng, 6, 5)
    writes = {
        "set_data": lambda run: run.parameters[0].set_data(mx.nd.array(values)),
        "assignment": lambda run: run.parameters[0].data().__setitem__(slice(None), 0.25),
        "in place": lambda run: run.parameters[0].data().__imul__(0.5),
        "out": lambda run: mx.nd.elemwise_add(mx.nd.array(values), mx.nd.array(values), out=run.parameters[0].data()),
        "gradient": lambda run: run.parameters[0].grad().__imul__(0.5),
        "initialize": lambda run: run.parameters[1].initialize(mx.init.Constant(0.1), force_reinit=True),
        "cast": lambda run: run.parameters[0].cast("float32"),
        "context": lambda run: run.net.collect_params().reset_ctx(mx.cpu()),
    }
    for run in (one, other):  # MXNet's static memory keeps the first gradients
        run.net.hybridize()
    for write in writes.values():
        for x, y in batches(rng, 2):
            for run in (one, other):
                run.step(x, y)
        ((x, y),) = batches(rng, 1)
        for run in (one, other):
            run.backward(x, y)
            write(run)
            run.trainer.step(BATCH, ignore_stale_grad=True)
        equal(one, other, 1e-3, 1e-4)
    for x, y in batches(rng, 2):
        for run in (one, other):
            run.step(x, y)
    equal(one, other, 1e-3, 1e-4)
    assert other.places <= {"host", "both", "device"} and None not in other.places


@pytest.mark.parametrize("optimizer", ["sgd", "nag", "adam", "rmsprop"])
def test_states_are_files_of_mxnet(staged, rng, tmp_path, optimizer):
    given = {"learning_rate": 0.02, **({"momentum": 0.9} if optimizer in ("sgd", "nag") else {})}
    given.update({"centered": True} if optimizer == "rmsprop" else {})
    one, other = pair(optimizer=optimizer, given=given)
    x, y = next(batches(rng, 1))
    for run in (one, other):
        for _ in range(3):
            run.step(x, y)
        run.trainer.save_states(str(tmp_path / "states"))  # the second's stays: both load it
    third = Run(dense, gluon.Trainer, optimizer, given, like=other)
    fourth = Run(dense, ops.Trainer, optimizer, given, like=other)
    for run in (third, fourth):
        run.trainer.load_states(str(tmp_path / "states"))
    for _ in range(3):
        for run in (one, other, third, fourth):
            run.step(x, y)
    for run in (other, third, fourth):
        equal(one, run, 1e-4, 1e-6)
    other.trainer.load_states(str(tmp_path / "states"))  # into one at work
    third.trainer.load_states(str(tmp_path / "states"))
    for run in (other, third):
        run.step(x, y)
    equal(third, other, 1e-4, 1e-6)


def test_gradients_that_add_up(staged, rng):
    one, other = pair(given={"learning_rate": 0.1})
    for run in (one, other):
        for parameter in run.parameters:
            parameter.grad_req = "add"
    for number, (x, y) in enumerate(batches(rng, 6)):
        for run in (one, other):
            run.backward(x, y)
            if number % 2:
                run.trainer.step(2 * BATCH)
                (run.net.collect_params() if number == 3 else run.parameters[0]).zero_grad()
                for parameter in run.parameters[1:]:
                    parameter.zero_grad()
    equal(one, other, 1e-4, 1e-6)
    for run in (one, other):  # and back
        run.net.collect_params().setattr("grad_req", "write")
    for x, y in batches(rng, 2):
        for run in (one, other):
            run.step(x, y)
    equal(one, other, 1e-4, 1e-6)


def test_frozen_parameters_and_a_net_that_is_frozen_later(staged, rng):
    one, other = pair(given={"learning_rate": 0.1, "momentum": 0.9})
    for grad_req in ("null", "write"):
        for run in (one, other):
            run.parameters[0].grad_req = grad_req
        before = other.parameters[0].data().asnumpy()
        for x, y in batches(rng, 3):
            for run in (one, other):
                run.step(x, y, ignore_stale_grad=True)
        equal(one, other, 1e-4, 1e-6)
        assert (before == other.parameters[0].data().asnumpy()).all() == (grad_req == "null")


def test_stale_gradients_are_told(staged, rng):
    run = Run(dense)
    x, y = next(batches(rng, 1))
    run.step(x, y)
    with pytest.raises(UserWarning, match="has not been updated by backward"):
        run.trainer.step(BATCH)
    assert run.trainer.optimizer.num_update == 1 == max(run.trainer.optimizer._index_update_count.values())
    before = run.parameters[0].data().asnumpy()
    run.trainer.step(BATCH, ignore_stale_grad=True)
    np.testing.assert_array_equal(run.parameters[0].data().asnumpy(), before)


def test_a_net_that_runs_twice_and_several_losses(staged, rng):
    one, other = pair(given={"learning_rate": 0.1})
    for run in (one, other):  # MXNet's static memory is wrong then
        run.net.hybridize()
    for (x, y), (x2, y2) in zip(batches(rng, 4), batches(rng, 4)):
        for run in (one, other):
            with autograd.record():
                first, second = run.loss(run.net(x), y), run.loss(run.net(x2), y2)
            autograd.backward([first, second])
            run.trainer.step(BATCH)
        for run in (one, other):  # one after another: the second overwrites
            with autograd.record():
                first, second = run.loss(run.net(x), y), run.loss(run.net(x2), y2)
            first.backward()
            second.backward()
            run.trainer.step(BATCH)
    equal(one, other, 1e-4, 1e-6)


def test_gradients_of_inputs_alone_leave_those_of_parameters(staged, rng):
    one, other = pair(given={"learning_rate": 0.1})
    x, y = next(batches(rng, 1))
    found = []
    for run in (one, other):
        run.step(x, y)
        run.backward(x, y)
        x.attach_grad()
        with autograd.record():
            out = run.loss(run.net(x), y)
        found.append(autograd.grad([out], [x])[0].asnumpy())
        run.trainer.step(BATCH)
    np.testing.assert_allclose(found[1], found[0], 1e-4, 1e-6)
    equal(one, other, 1e-4, 1e-6)


def test_two_nets_share_parameters(staged, rng):
    runs = []
    for kind in (gluon.Trainer, ops.Trainer):
        like = runs[0] if runs else None
        run = Run(dense, kind, given={"learning_rate": 0.1}, like=like)
        second = nn.HybridSequential(prefix="second_")
        with second.name_scope():
            second.add(nn.Dense(6, activation="relu", params=run.net[0].params), nn.Dense(2))
        second.initialize(mx.init.Constant(0.2))
        if len(runs) == 0:
            plain = second
        else:  # another one that MXNet runs
            plain = nn.HybridSequential(prefix="plain_")
            with plain.name_scope():
                plain.add(nn.Dense(6, params=run.net[0].params))
            plain.hybridize()
        ops.swap_block(second, regions=True)
        second.hybridize(**STATIC)
        run.second, run.plain = second, plain
        runs.append(run)
    one, other = runs
    for x, y in batches(rng, 4):
        outputs = []
        for run in runs:
            with autograd.record():
                loss = run.loss(run.net(x), y) + run.second(x).sum(axis=1)
            loss.backward()
            run.trainer.step(BATCH)
            outputs.append(run.second(x).asnumpy())
        np.testing.assert_allclose(outputs[1], outputs[0], 1e-4, 1e-5)
    assert other.places <= {"device", "both"}
    equal(one, other, 1e-4, 1e-6)
    read = other.plain(x).asnumpy()
    weight, bias = (other.parameters[i].data().asnumpy() for i in (0, 1))
    np.testing.assert_allclose(read, x.asnumpy() @ weight.T + bias, 1e-4, 1e-5)


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


# modules


def symbol() -> mx.sym.Symbol:
    """Return a small classifier with moving statistics."""
    x = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=6, no_bias=True, name="fc1")
    x = mx.sym.BatchNorm(x, fix_gamma=False, name="bn")
    x = mx.sym.FullyConnected(mx.sym.Activation(x, act_type="tanh", name="act"), num_hidden=3, name="fc2")
    return mx.sym.SoftmaxOutput(x, name="softmax")


def swapped(**more) -> mx.sym.Symbol:
    return ops.swap_symbol(symbol(), regions=True, **more)[0]


def modules(frozen=False, **more):
    """Return a module of MXNet's operators, and one that is to have residents."""
    return mx.mod.Module(symbol(), **more), ops.resident(mx.mod.Module(swapped(frozen=frozen), **more))


def classes(rng, count, batch=BATCH, dtype="float32"):
    """Return an iterator of data and labels."""
    data, labels = random(rng, count, 5).astype(dtype), rng.integers(0, 3, count).astype("float32")
    return mx.io.NDArrayIter(mx.nd.array(data, dtype=dtype), mx.nd.array(labels, dtype=dtype), batch)


def prepared(pair, batches, optimizer="sgd", given=None, **more):
    """Bind modules with the same parameters and make their optimizers."""
    for module in pair:
        module.bind(batches.provide_data, batches.provide_label, **more)
        if module is pair[0]:
            mx.random.seed(3)
            module.init_params(mx.init.Uniform(0.5))
        else:
            module.init_params(None, *pair[0].get_params())
        module.init_optimizer(optimizer=optimizer, optimizer_params=dict(given or {}))
    return pair


def finish(module):
    """Wait for the moving statistics of MXNet's batch norm: who reads them does not wait for the backward."""
    if not places_of(module):
        mx.nd.waitall()


def steps(module, batches, count=None):
    batches.reset()
    for number, batch in enumerate(batches):
        if number == count:
            break
        module.forward_backward(batch)
        module.update()
    finish(module)


def same(pair, rtol=1e-4, atol=2e-6):
    for a, b in zip(*(module.get_params() for module in pair)):
        for name in a:
            np.testing.assert_allclose(b[name].asnumpy(), a[name].asnumpy(), rtol, atol, err_msg=name)


def places_of(module):
    executor = module._exec_group.execs[0]
    found = [resident_of(array) for name, array in {**executor.arg_dict, **executor.aux_dict}.items()]
    return [one.place for one in found if one is not None]


def test_module_fit_is_that_of_mxnet(staged, rng, tmp_path):
    train, held = classes(rng, 6 * BATCH), classes(rng, 2 * BATCH + 1)
    given = {"learning_rate": 0.1, "momentum": 0.9, "wd": 0.01}
    pair, seen = modules(), []

    def see(step):
        found.extend(value for _, value in step.eval_metric.get_name_value())
        finish(pair[len(seen)])

    for number, module in enumerate(pair):
        found = []
        train.reset()
        mx.random.seed(3)
        schedule = mx.lr_scheduler.PolyScheduler(max_update=20, base_lr=0.1, warmup_steps=3)
        module.fit(
            train,
            held,
            optimizer="sgd",
            optimizer_params={**given, "lr_scheduler": schedule, "begin_num_update": 2},
            initializer=mx.init.Uniform(0.5),
            eval_metric=["acc", "ce"],
            batch_end_callback=see,
            eval_end_callback=see,
            epoch_end_callback=mx.callback.module_checkpoint(module, str(tmp_path / str(number)), 1, True),
            num_epoch=2,
        )
        seen.append(found)
    np.testing.assert_allclose(seen[1], seen[0], 1e-4, 1e-5)
    same(pair)
    assert pair[1].host == {} and len(places_of(pair[1])) == 7
    # files of either continue in both
    again = [mx.mod.Module.load(str(tmp_path / number), 2, True) for number in ("0", "1")]
    swapped().save(str(tmp_path / "0-symbol.json"))
    again += [ops.resident(mx.mod.Module.load(str(tmp_path / number), 2, True)) for number in ("0", "1")]
    for module in (*pair, *again):
        if module in again:
            module.bind(train.provide_data, train.provide_label)
            module.init_optimizer(optimizer="sgd", optimizer_params=given)
        else:
            module._optimizer.lr_scheduler, module._optimizer.lr = None, 0.1
        steps(module, train, 3)
        same((pair[0], module))
        assert bool(places_of(module)) == (module in (pair[1], *again[2:]))


def test_module_sends_only_inputs_and_outputs(staged, rng):
    batches = classes(rng, 3 * BATCH)
    gc.collect()
    known = len(residents._known)
    pair = prepared(modules(), batches, given={"momentum": 0.9})
    steps(pair[1], batches)
    mx.nd.waitall()
    before = staged.counters()
    steps(pair[1], batches, 1)
    mx.nd.waitall()
    after = staged.counters()
    moved = sum(after[name] - before[name] for name in ("bytes_to_device", "bytes_to_host"))
    assert moved <= 4 * BATCH * (2 * 5 + 2 + 2 * 3), moved
    assert len(residents._known) > known
    del pair
    mx.nd.waitall()
    gc.collect()
    assert len(residents._known) == known


@pytest.mark.parametrize("frozen", [False, True], ids=["", "frozen"])
def test_module_in_every_other_way(staged, rng, frozen):
    batches = classes(rng, 4 * BATCH)
    more = {"grad_req": "add", "inputs_need_grad": True}
    pair = prepared(modules(frozen, fixed_param_names=["fc2_bias"]), batches, "adam", {"learning_rate": 0.05}, **more)
    odd = mx.io.DataBatch([mx.nd.array(random(rng, 7, 5))], [mx.nd.array(rng.integers(0, 3, 7))])
    given = {name: mx.nd.array(random(rng, *array.shape)) for name, array in pair[0].get_params()[0].items()}
    for number in range(4):
        found = []
        for module in pair:
            batches.reset()
            for batch in (next(batches), odd, next(batches)):  # other shapes, to and fro
                module.forward_backward(batch)
                module.update()
            finish(module)
            found.append([module.get_input_grads()[0].asnumpy(), module.get_outputs()[0].asnumpy()])
            if number == 1:
                for (gradient,) in module._exec_group.grad_arrays:
                    if gradient is not None:
                        gradient[:] = 0
            if number == 2:
                module.set_params(given, module.get_params()[1])
            found[-1] += [module.predict(batches).asnumpy(), [v for _, v in module.score(batches, "ce")]]
            module._optimizer.set_learning_rate(0.02)
        for a, b in zip(*found):
            np.testing.assert_allclose(b, a, 1e-3, 1e-5)
        same(pair, 1e-3, 1e-5)
    assert pair[1].host == {} and len(places_of(pair[1])) == 7


def test_statistics_of_fixed_layers_stay_in_modules(staged, rng):
    batches = classes(rng, 2 * BATCH)
    split = ops.swap_symbol(symbol(), regions=True, select=lambda node: node.name != "act")[0]
    fixed = {"fixed_param_names": ["fc1_weight", "bn_gamma", "bn_beta"]}
    pair = prepared((mx.mod.Module(symbol(), **fixed), ops.resident(mx.mod.Module(split, **fixed))), batches)
    for module in pair:
        steps(module, batches)
    same(pair)
    assert pair[1].host == {} and not pair[1].get_params()[1]["bn_moving_mean"].asnumpy().any()


@pytest.mark.parametrize("optimizer", ["sgd", "nag", "adam", "adamw"])
def test_module_in_float16(staged, rng, optimizer):
    batches = classes(rng, 4 * BATCH, dtype="float16")
    given = {"learning_rate": 0.05, "wd": 0.01, "clip_gradient": 0.5, "multi_precision": True}
    pair = mx.mod.Module(swapped()), ops.resident(mx.mod.Module(swapped()))  # MXNet has no such FullyConnected
    prepared(pair, batches, "ocl_adamw" if optimizer == "adamw" else optimizer, given)
    for module in pair:
        steps(module, batches)
    assert set(places_of(pair[1])) == {"device"} and pair[1].host == {}
    same(pair, 5e-3, 5e-3)
    assert {array.dtype for array in pair[1]._exec_group.execs[0].arg_arrays} == {np.float16, np.float32}


def test_what_modules_leave_on_the_host(staged, rng):
    batches = classes(rng, 2 * BATCH)
    with pytest.raises(ProblemError, match="got a PythonLossModule, expected a Module"):
        ops.resident(mx.mod.PythonLossModule())

    def left(module):
        (reason,) = set(module.host.values())
        assert places_of(module) == []
        return reason

    pair = prepared(modules(), batches, "signum")
    assert left(pair[1]) == "the optimizer Signum is not served on devices"
    half = prepared(modules(), classes(rng, BATCH, dtype="float16"), "sgd")
    assert left(half[1]) == "it is float16, and the optimizer has no multi_precision"
    stored = ops.resident(mx.mod.Module(swapped()))
    stored.bind(batches.provide_data, batches.provide_label)
    assert stored.host == {}
    stored.init_params()
    stored.init_optimizer(mx.kv.create("local"))
    assert left(stored) == "a key-value store has them"
    # later
    for use in ("monitor", "module"):
        pair = prepared(modules(), batches, "sgd", {"momentum": 0.9})
        for module in pair:
            steps(module, batches)
        pair[1].forward(next(iter(batches)) if batches.reset() is None else None)
        if use == "monitor":
            pair[1].install_monitor(mx.mon.Monitor(1))
        else:
            second = mx.mod.Module(swapped())
            second.bind(batches.provide_data, batches.provide_label, shared_module=pair[1])
        assert left(pair[1]).startswith("something else uses the executor")
        with pytest.raises(ops.OperatorError, match="expected a forward in between"):
            pair[1].backward()
        pair[0].forward(next(iter(batches)) if batches.reset() is None else None)
        for module in pair:
            steps(module, batches)
        same(pair)


def test_a_module_on_a_processor_and_one_that_works_already(context, staged, rng, monkeypatch):
    batches = classes(rng, 3 * BATCH)
    plain, late = prepared((mx.mod.Module(symbol()), mx.mod.Module(swapped())), batches)
    for module in (plain, late):
        steps(module, batches)
    ops.resident(late)
    for module in (plain, late):
        steps(module, batches)
    same((plain, late))
    assert late.host == {} and len(places_of(late)) == 7
    if context.device.host_access != "staged":
        monkeypatch.undo()
        module = ops.resident(mx.mod.Module(swapped()))
        prepared((mx.mod.Module(symbol()), module), batches)
        assert set(module.host.values()) == {"the device uses the host's memory"}
        assert type(module._optimizer) is ops.OclSGD


KEYS = 3, 2


def unrolled(key: int, **more) -> tuple:
    """Return the symbol of a bucket: a recurrent layer, unrolled; with names of inputs."""
    data, hidden = mx.sym.var("data"), None
    weight, bias, own = mx.sym.var("i_weight"), mx.sym.var("i_bias"), mx.sym.var("h_weight")
    for time in range(key):
        step = mx.sym.squeeze(mx.sym.slice_axis(data, axis=1, begin=time, end=time + 1), axis=1)
        step = mx.sym.FullyConnected(step, weight, bias, num_hidden=6, name=f"i{time}")
        hidden = mx.sym.zeros_like(step) if hidden is None else hidden
        old = mx.sym.FullyConnected(hidden, own, no_bias=True, num_hidden=6, name=f"h{time}")
        hidden = mx.sym.Activation(step + old, act_type="tanh")
    x = mx.sym.BatchNorm(hidden, fix_gamma=False, name="bn")
    found = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(x, num_hidden=3, name="fc"), name="softmax")
    return ops.swap_symbol(found, regions=True, **more)[0] if more else found, ["data"], ["softmax_label"]


def sequences(rng, count):
    """Return batches of buckets in turn."""
    for number in range(count):
        key = KEYS[number * 2 // 3 % 2]
        data, label = random(rng, BATCH, key, 5), rng.integers(0, 3, BATCH).astype("float32")
        names = {"provide_data": [("data", data.shape)], "provide_label": [("softmax_label", label.shape)]}
        yield mx.io.DataBatch([mx.nd.array(data)], [mx.nd.array(label)], bucket_key=key, **names)


def bucketed(rng, swapped_of, late=False):
    """Return bound modules with buckets: one of MXNet's operators, and a swapped one with residents."""
    first, pair = next(sequences(rng, 1)), []
    for make in (unrolled, swapped_of):
        module = mx.mod.BucketingModule(make, KEYS[0], context=mx.cpu())
        pair.append(ops.resident(module) if pair and not late else module)
        module.bind(first.provide_data, first.provide_label)
        mx.random.seed(3)
        module.init_params(mx.init.Uniform(0.5), *(pair[0].get_params() if len(pair) == 2 else ()))
        module.init_optimizer(optimizer="sgd", optimizer_params={"learning_rate": 0.1, "momentum": 0.9})
    return pair


@pytest.mark.parametrize("late", [False, True], ids=["", "late"])
def test_buckets_share_what_is_on_the_device(staged, rng, late, tmp_path):
    pair = bucketed(rng, lambda key: unrolled(key, select=None), late)
    data = list(sequences(rng, 6))
    for number, module in enumerate(pair):
        for batch in data[:3]:
            module.forward_backward(batch)
            module.update()
        if late and number:
            ops.resident(module)
    for batch in data:
        for module in pair:
            module.forward_backward(batch)
            module.update()
    mx.nd.waitall()
    assert pair[1].host == {} and all(len(places_of(bucket)) == 9 for bucket in pair[1]._buckets.values())
    before = staged.counters()
    pair[1].forward_backward(data[0])
    pair[1].update()
    mx.nd.waitall()
    after = staged.counters()
    moved = sum(after[name] - before[name] for name in ("bytes_to_device", "bytes_to_host"))
    assert moved <= 4 * BATCH * (2 * 5 * KEYS[0] + 2 + 2 * 3), moved
    pair[0].forward_backward(data[0])
    pair[0].update()
    mx.nd.waitall()
    same(pair)
    # inference of another bucket, files, other parameters, and new executors
    for module in pair:
        module.forward(data[3], is_train=False)
    np.testing.assert_allclose(*(module.get_outputs()[0].asnumpy() for module in pair), 1e-4, 1e-5)
    pair[1].save_params(str(tmp_path / "params"))
    pair[0].load_params(str(tmp_path / "params"))
    pair[1].set_params(*pair[0].get_params())
    for module in pair:
        module.bind(data[0].provide_data, data[0].provide_label, force_rebind=True)
        module.init_optimizer(optimizer="nag", force_init=True)
        for batch in data:
            module.forward_backward(batch)
            module.update()
    mx.nd.waitall()
    same(pair)
    assert pair[1].host == {}
    for module in pair:
        module.install_monitor(mx.mon.Monitor(100))
        for batch in data:
            module.forward_backward(batch)
            module.update()
    mx.nd.waitall()
    same(pair)
    assert set(map(bool, map(places_of, pair[1]._buckets.values()))) == {False}
    assert len(set(pair[1].host.values())) == 1 and "monitor" in pair[1].host["fc_weight"]


def test_a_bucket_that_reads_a_parameter_outside_of_regions(staged, rng):
    def of(key):
        return unrolled(key, select=lambda node: key == KEYS[0] or node.name != "fc")

    pair = bucketed(rng, of)
    assert pair[1].host == {}
    for batch in sequences(rng, 6):
        for module in pair:
            module.forward_backward(batch)
            module.update()
    mx.nd.waitall()
    same(pair)
    assert set(pair[1].host.values()) == {"another symbol reads fc_bias outside of regions"}


def test_modules_one_after_the_other(staged, rng):
    batches, pair = classes(rng, 4 * BATCH), []
    x = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=6, name="fc1")
    first = mx.sym.Activation(x, act_type="tanh", name="act")
    second = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.var("x"), num_hidden=3, name="fc2"), name="softmax")
    for number in range(2):
        chain = mx.mod.SequentialModule()
        for place, symbol in enumerate((first, second)):
            symbol = ops.swap_symbol(symbol, regions=True)[0] if number else symbol
            chain = ops.resident(chain) if number and place else chain  # one is in it, one comes
            names = {"data_names": ["x"]} if place else {"label_names": None}
            chain.add(mx.mod.Module(symbol, **names), take_labels=bool(place), auto_wiring=True)
        pair.append(chain)
    prepared(pair, batches, given={"learning_rate": 0.1, "momentum": 0.9})
    for chain in pair:
        for _ in range(2):
            batches.reset()
            for batch in batches:
                chain.forward_backward(batch)
                chain.update()
    same(pair)
    assert pair[1].host == {} and [len(places_of(module)) for module in pair[1]._modules] == [2, 2]


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
