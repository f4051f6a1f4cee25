"""`clgraft.mxnet_ops.Trainer`: parameters, gradients and states stay current."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

import clgraft.mxnet_ops as ops
from clgraft.mxnet_ops.engine import backward_writes
from tests.mxnet_ops.operator_checks import random
from tests.mxnet_ops.trainers import BATCH, OPTIMIZERS, STATIC, Run, batches, convolutions, dense, equal, pair


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


@pytest.mark.parametrize("before", [0, 2], ids=["new", "at work"])
@pytest.mark.parametrize("grad_req", ["write", "add"])
def test_a_parameter_that_is_frozen_and_learned_again_before_a_step(staged, rng, grad_req, before):
    """MXNet gives it other arrays, of which the next step has to take the gradient."""
    one, other = pair(given={"learning_rate": 0.1, "momentum": 0.9})
    for run in (one, other):  # MXNet's static memory keeps the first gradients
        run.net.hybridize()
    for number, (x, y) in enumerate(batches(rng, before + 2)):
        for run in (one, other):
            if number == before:
                run.parameters[0].grad_req = "null"
                run.parameters[0].grad_req = grad_req
            run.step(x, y)
            if number >= before:
                run.parameters[0].zero_grad()
    assert other.trainer.host == {}
    equal(one, other, 1e-4, 1e-6)


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


def test_weights_in_a_layout_of_onednn_are_read(staged, rng):
    """MXNet's inference leaves them so, where a net shares them or ran before it was swapped."""

    def make():
        net = nn.HybridSequential(prefix="net_")
        with net.name_scope():
            net.add(nn.Conv2D(16, 3, padding=1, in_channels=3), nn.GlobalAvgPool2D(), nn.Dense(3))
        return net

    shape = (3, 16, 16)
    one, other = pair(make, given={"learning_rate": 0.1}, shape=shape)
    plain = [nn.Conv2D(16, 3, padding=1, in_channels=3, params=run.net[0].params) for run in (one, other)]
    for x, y in batches(rng, 3, shape):
        outputs = []
        for run, net in zip((one, other), plain):
            outputs.append(net(x).asnumpy())
            mx.nd.waitall()
            run.step(x, y)
        np.testing.assert_allclose(*reversed(outputs), 1e-4, 1e-5)
        equal(one, other, 1e-4, 1e-5)


def updates(run):
    """Return how many arrays of each kind the updates of a trainer take."""
    histories = len(run.trainer._updates._known[0].item.states)
    return [len(one.plan.arguments) / (2 + histories) for one in run.trainer._updates._compiled.values()]


@pytest.mark.parametrize("optimizer, given", OPTIMIZERS, ids=lambda value: value if isinstance(value, str) else "")
def test_parameters_are_updated_as_one_array(staged, rng, optimizer, given):
    one, other = pair(optimizer=optimizer, given=given)
    for x, y in batches(rng, 3):
        for run in (one, other):
            run.step(x, y)
    assert updates(other) == [1]
    equal(one, other)


def test_parameters_that_differ_in_numbers_lie_next_to_those_that_end_alike(staged, rng):
    one, other = pair(convolutions, given={"learning_rate": 0.05, "momentum": 0.9, "wd": 0.1}, shape=(3, 5, 5))
    for run in (one, other):
        for parameter in run.parameters:
            parameter.wd_mult = float(parameter.name.endswith("_weight"))
    for x, y in batches(rng, 3, (3, 5, 5)):
        for run in (one, other):
            run.step(x, y)
    assert updates(other) == [2]
    equal(one, other, 1e-4, 1e-5)


def test_a_parameter_that_is_frozen_among_others(staged, rng):
    one, other = pair(lambda: deep("net_"), given={"learning_rate": 0.1, "momentum": 0.9})
    for number, (x, y) in enumerate(batches(rng, 4)):
        for run in (one, other):
            if number == 2:
                run.parameters[2].grad_req = "null"  # the second of three weights
            run.step(x, y)
    assert updates(other) == [1, 2]
    equal(one, other)


def deep(prefix):
    """Return a net of three dense layers."""
    net = nn.HybridSequential(prefix=prefix)
    with net.name_scope():
        net.add(nn.Dense(6, activation="tanh"), nn.Dense(5, activation="tanh"), nn.Dense(3))
    return net


def test_states_that_somebody_holds_keep_their_elements(staged, rng, tmp_path):
    one, other = pair(given={"learning_rate": 0.1, "momentum": 0.9})
    file, held = str(tmp_path / "states"), {}
    for number, (x, y) in enumerate(batches(rng, 4)):
        for run in (one, other):
            if number == 1:
                run.trainer.save_states(file)
            if number == 3:
                held[run] = run.trainer._updaters[0].states[0]
                run.trainer.load_states(file)
            run.step(x, y)
    np.testing.assert_allclose(held[other].asnumpy(), held[one].asnumpy(), 2e-5, 2e-6)
    equal(one, other)


def test_a_backward_waits_for_other_trainers_before_it_queues_anything(monkeypatch):
    calls = []
    monkeypatch.setattr(backward_writes, "AROUND", [lambda only, order: calls.append("around") or (lambda: None)])
    monkeypatch.setattr(backward_writes.plain, "before_backward", lambda: calls.append("plain"))
    x = mx.nd.ones((2,))
    x.attach_grad()
    with autograd.record():
        y = x * x
    y.backward()
    assert calls == ["around", "plain"]
