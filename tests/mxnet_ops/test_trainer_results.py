"""Results of regions that stay on the device until they are asked for, next to MXNet's."""

from __future__ import annotations

import gc

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon

import clgraft.mxnet_ops as ops
from clgraft.mxnet_ops.engine import results
from clgraft.mxnet_ops.engine.results import ResultArray
from tests.mxnet_ops.operator_checks import random
from tests.mxnet_ops.trainers import BATCH, STATIC, batches, convolutions, dense, equal


class WithLoss(gluon.HybridBlock):
    """A net and its loss; also returns twice what the net predicts, if wanted."""

    def __init__(self, net, predicts=False):
        super().__init__()
        self.net, self._predicts = net, predicts

    def hybrid_forward(self, F, x, y):
        predicted = self.net(x)
        loss = F.mean(F.square(predicted - y), axis=1)
        return (loss, 2 * predicted) if self._predicts else loss


class Run:
    """A net and its loss as one block, with a trainer."""

    def __init__(self, make, kind, shape=(5,), like=None, predicts=False, static=STATIC):
        self.whole = WithLoss(make(), predicts)
        self.whole.initialize(mx.init.Xavier())
        self.whole(mx.nd.zeros((1, *shape)), mx.nd.zeros((1, 3)))
        if like is not None:
            for own, other in zip(self.parameters, like.parameters):
                own.set_data(other.data())
            ops.swap_block(self.whole, regions=True)
        self.whole.hybridize(**static)
        given = {"learning_rate": 0.1, "momentum": 0.9}
        self.trainer = kind(self.whole.collect_params(), "sgd", given)

    @property
    def parameters(self):
        return list(self.whole.collect_params().values())

    def step(self, x, y):
        with autograd.record():
            found = self.whole(x, y)
        (found[0] if isinstance(found, (list, tuple)) else found).backward()
        self.trainer.step(BATCH)
        return found


def pair(make=dense, **more):
    one = Run(make, gluon.Trainer, **more)
    return one, Run(make, ops.Trainer, like=one, **more)


def close(found, expected):
    np.testing.assert_allclose(found.asnumpy(), expected.asnumpy(), 2e-5, 1e-6)


@pytest.mark.parametrize("static", [STATIC, {}], ids=["static", "dynamic"])
@pytest.mark.parametrize("make, shape", [(dense, (5,)), (convolutions, (3, 5, 7))], ids=["dense", "convolutions"])
def test_a_step_brings_nothing_until_its_loss_is_asked_for(staged, rng, make, shape, static):
    one, other = pair(make, shape=shape, static=static)
    for number, (x, y) in enumerate(batches(rng, 6, shape)):
        expected, before = one.step(x, y), staged.counters()["bytes_to_host"]
        loss = other.step(x, y)
        mx.nd.waitall()
        assert type(loss) is ResultArray
        assert (staged.counters()["bytes_to_host"] == before) is (number > 0)
        assert loss.shape == (BATCH,) and loss.dtype == np.float32
        close(loss, expected)
        close(loss + 1, expected + 1)
        assert type(loss) is mx.nd.NDArray
    equal(one, other)


def test_results_that_are_asked_for_after_many_steps(staged, rng):
    one, other = pair(predicts=True)
    found = [(one.step(x, y), other.step(x, y)) for x, y in batches(rng, 7)]
    assert {type(array) for _, pair in found for array in pair} == {ResultArray}
    for expected, own in reversed(found):
        for a, b in zip(own, expected):
            close(a, b)
    equal(one, other)


def test_who_asks_waits_for_the_forward_alone(staged, rng, monkeypatch):
    def finish():
        raise AssertionError

    one, other = pair()
    for number, (x, y) in enumerate(batches(rng, 4)):
        expected, loss = one.step(x, y), other.step(x, y)
        with monkeypatch.context() as patch:
            patch.setattr(staged, "finish", finish)
            if number < 3:
                close(loss, expected)
    other.step(x, y), other.step(x, y)
    other.whole.initialize(mx.init.Constant(7.0), force_reinit=True)  # the parameters, not what was computed with them
    close(loss, expected)


def test_batches_of_several_sizes(staged, rng):
    one, other = pair()
    found = []
    for size in (4, 4, 1, 7, 1, 4, 7):
        x, y = mx.nd.array(random(rng, size, 5)), mx.nd.array(random(rng, size, 3))
        found.append((one.step(x, y), other.step(x, y)))
    for expected, own in found:
        close(own, expected)
    equal(one, other)


def test_results_that_are_asked_for_early_go_to_the_host_from_then_on(staged, rng):
    one, other = pair(predicts=True)
    for number, (x, y) in enumerate(batches(rng, 8)):
        expected = one.step(x, y)
        before = staged.counters()["bytes_to_host"]
        with autograd.record():
            loss, predicted = other.whole(x, y)
            if number == 3:
                close(predicted, expected[1])
        loss.backward()
        other.trainer.step(BATCH)
        mx.nd.waitall()
        brought = staged.counters()["bytes_to_host"] - before
        assert type(loss) is ResultArray
        if number > 3:
            assert type(predicted) is mx.nd.NDArray and brought == 4 * predicted.size
        close(loss, expected[0])
        close(predicted, expected[1])
    equal(one, other)


def test_operators_of_mxnet_on_a_result(staged, rng):
    one, other = pair()
    for x, y in batches(rng, 5):
        found = []
        for run in (one, other):
            with autograd.record():
                loss = (run.whole(x, y) * 3).mean()
            loss.backward()
            run.trainer.step(1)
            found.append(loss)
        close(found[1], found[0])
    equal(one, other)


def test_several_calls_and_backwards(staged, rng):
    one, other = pair(static={})
    for _ in range(5):
        found, data = [], list(batches(rng, 3))
        for run in (one, other):
            with autograd.record():
                losses = [run.whole(x, y) for x, y in data]
            autograd.backward(losses, retain_graph=True)
            autograd.backward(losses)
            run.trainer.step(BATCH)
            found.append(losses)
        for expected, own in zip(*found):
            close(own, expected)
    equal(one, other)


def test_calls_without_a_recording(staged, rng):
    one, other = pair(convolutions, shape=(3, 5, 7))
    for x, y in batches(rng, 3, (3, 5, 7)):
        for mode in (autograd.train_mode, autograd.predict_mode):
            with mode():
                close(other.whole(x, y), one.whole(x, y))
        one.step(x, y), other.step(x, y)
    x, y = next(batches(rng, 1, (3, 5, 7)))
    with autograd.train_mode():
        close(other.whole(x, y), one.whole(x, y))
    with autograd.record(train_mode=False):
        close(other.whole(x, y), one.whole(x, y))


def test_a_gradient_of_a_head(staged, rng):
    one, other = pair()
    for x, y in batches(rng, 4):
        found = []
        for run in (one, other):
            x.attach_grad()
            with autograd.record():
                loss = run.whole(x, y)
            loss.backward(mx.nd.array([1.0, -2.0, 0.5, 3.0]))
            found.append(x.grad.copy())
            run.trainer.step(BATCH)
        close(found[1], found[0])
    equal(one, other)


def test_what_nobody_asks_for_is_forgotten(staged, rng):
    _, other = pair()
    gc.collect()
    before = len(results._known)
    kept = [other.step(x, y) for x, y in batches(rng, 6)]
    assert len(results._known) == before + 6
    del kept
    gc.collect()
    assert len(results._known) == before
