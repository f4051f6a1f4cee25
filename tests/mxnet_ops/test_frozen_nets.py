"""Frozen parameters of regions in nets: inference reads them once, and again after training, writes and `refresh`."""

from __future__ import annotations

import gc
import threading
import time
import weakref

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon
from mxnet.gluon import nn

import clgraft.mxnet_ops as ops
from clgraft.mxnet_ops.engine import changes
from clgraft.mxnet_ops.regions import held, passes
from tests.mxnet_ops.frozen_nets import equal, expect_held, image, make, small, write_unseen
from tests.mxnet_ops.operator_checks import random


@pytest.fixture(autouse=True)
def nothing_held():
    """Begin without constants of other tests."""
    ops.refresh()
    expect_held(0)


@pytest.fixture
def no_passes(monkeypatch):
    monkeypatch.setenv("CLGRAFT_GRAPH", "-all")


def expect_gone(*references: weakref.ref) -> None:
    """Check that objects are freed; the engine ends operators on threads of its own, a little later."""
    mx.nd.waitall()
    end = time.monotonic() + 20
    while any(reference() is not None for reference in references) and time.monotonic() < end:
        time.sleep(0.01)
    assert not any(reference() is not None for reference in references)


@pytest.mark.parametrize("hybrid", [{}, {"static_alloc": True, "static_shape": True}], ids=["plain", "static"])
def test_outputs_of_several_batches(rng, hybrid):
    plain = make(False, **hybrid)
    net = make(True, plain, **hybrid)
    for batch in (2, 5, 2, 1):
        x = image(rng, batch)
        equal(net(x), plain(x))
    expect_held(1)


def test_bits_without_passes(no_passes, rng):
    plain = make(False)
    net, x = make(True, plain), image(rng)
    np.testing.assert_array_equal(net(x).asnumpy(), plain(x).asnumpy())


@pytest.mark.parametrize("dtype", [pytest.param("float64", marks=pytest.mark.exhaustive), "float16"])
def test_other_dtypes(rng, dtype):
    plain = make(False, dtype=dtype)
    net, x = make(True, plain, dtype=dtype), image(rng, dtype=dtype)
    equal(net(x), plain(x), dtype)


def launches(monkeypatch) -> list[int]:
    """Return a list that grows by the launches of each pass that is made."""
    found: list[int] = []
    original = passes.Pass.bind

    def bind(self, *arguments):
        result = original(self, *arguments)
        found.extend(report.launches for report in self._compiled.reports()[-1:])
        return result

    monkeypatch.setattr(passes.Pass, "bind", bind)
    return found


def test_weights_are_prepared_once(rng, monkeypatch, context):
    if not context.device.is_cpu:
        pytest.skip("a GPU need not pack the weights of so small a net")
    found, x = launches(monkeypatch), image(rng, 3)
    plain, net = make(False), make(True)
    mx.nd.waitall()
    found.clear()
    plain(x).wait_to_read()
    net(x).wait_to_read()
    assert len(found) == 2 and found[1] < found[0]


def test_only_inputs_and_outputs_cross_the_bus(staged, rng):
    net = make(True)

    def moved(x) -> tuple[int, int]:
        mx.nd.waitall()
        before = staged.counters()
        y = net(x)
        mx.nd.waitall()
        after = staged.counters()
        up, down = (after[name] - before[name] for name in ("bytes_to_device", "bytes_to_host"))
        assert down == 4 * y.size
        return up

    x = image(rng)
    moved(x)
    assert moved(x) == 4 * x.size
    assert moved(image(rng, 3)) == 4 * 3 * 3 * 64
    assert moved(x) == 4 * x.size


def test_a_write_that_nothing_notices_is_seen_after_refresh(rng):
    plain = make(False)
    net, x = make(True, plain), image(rng)
    before = net(x).asnumpy()
    write_unseen(net[0].weight.data())
    write_unseen(plain[0].weight.data())
    np.testing.assert_array_equal(net(x).asnumpy(), before)
    ops.refresh(plain)  # another net's
    np.testing.assert_array_equal(net(x).asnumpy(), before)
    ops.refresh(net)
    equal(net(x), plain(x))
    assert not np.allclose(plain(x).asnumpy(), before)
    write_unseen(net[0].weight.data())
    ops.refresh()
    write_unseen(plain[0].weight.data())
    equal(net(x), plain(x))


def _load(net, folder):
    other = make(False)
    other[0].weight.set_data(other[0].weight.data() * 2)
    other.save_parameters(str(folder / "net.params"))
    net.load_parameters(str(folder / "net.params"))


def _in_place(net, folder):
    weight = net[0].weight.data()
    weight *= 2


def _new_arrays(net, folder):
    net.initialize(mx.init.One(), force_reinit=True)


def _view(net, folder):
    net[0].weight.data().detach()[:] = 0.25


def _update(net, folder):
    weight = net[0].weight.data()
    mx.optimizer.get_updater(mx.optimizer.SGD(learning_rate=1.0))(0, mx.nd.ones_like(weight), weight)


WRITES = {
    "set_data": lambda net, folder: net[0].weight.set_data(net[0].weight.data() * 2),
    "load_parameters": _load,
    "assignment": lambda net, folder: net[0].weight.data().__setitem__(slice(None), 0.5),
    "copyto": lambda net, folder: mx.nd.ones(net[0].weight.shape).copyto(net[0].weight.data()),
    "in place": _in_place,
    "new arrays": _new_arrays,
    "another view": _view,
    "updater": _update,
}


@pytest.mark.parametrize("write", WRITES.values(), ids=list(WRITES))
def test_writes_that_are_noticed(rng, tmp_path, write):
    plain = make(False)
    net, x = make(True, plain), image(rng)
    before = net(x).asnumpy()
    for each in (plain, net):
        write(each, tmp_path)
    equal(net(x), plain(x))
    assert not np.allclose(plain(x).asnumpy(), before)
    expect_held(1)


def train(net, x, trainer, between: bool = False) -> np.ndarray:
    with mx.autograd.record():
        loss = (net(x) ** 2).sum()
    if between:
        net(x).wait_to_read()
    loss.backward()
    if between:
        net(x).wait_to_read()
    trainer.step(len(x))
    return loss.asnumpy()


def trainer_of(net) -> gluon.Trainer:
    return gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 1e-3, "momentum": 0.9})


@pytest.mark.parametrize("between", [False, True])
def test_training_in_between(rng, between):
    """Inference between forward and backward, and between backward and update, reads what is there then."""
    plain = make(False)
    net = make(True, plain)
    trainers = [trainer_of(each) for each in (plain, net)]
    for _ in range(3):
        x = image(rng)
        equal(net(x), plain(x))
        losses = [train(each, x, trainer, between) for each, trainer in zip((plain, net), trainers)]
        np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)
    equal(net(x), plain(x))
    for a, b in zip(plain.collect_params().values(), net.collect_params().values()):
        equal(b.data(), a.data())


def test_gradients_of_a_forward_that_does_not_train(rng):
    plain = make(False)
    net, x, found = make(True, plain), image(rng), []
    for each in (plain, net):
        each(x)
        x.attach_grad()
        with mx.autograd.record(train_mode=False):
            y = each(x)
        y.backward()
        found += [x.grad.copy(), each[0].weight.grad().copy()]
    equal(found[2], found[0])
    equal(found[3], found[1])


def test_nets_that_share_parameters(rng):
    one = make(True)
    two = small(params=one.collect_params())
    ops.swap_block(two, regions=True, frozen=True)
    two.hybridize()
    x = image(rng)
    equal(two(x), one(x))
    train(two, x, trainer_of(two))
    plain = make(False, two)
    equal(one(x), plain(x))
    equal(two(x), plain(x))


def test_several_contexts(rng):
    net = small()
    ops.swap_block(net, regions=True, frozen=True)
    places = [mx.cpu(0), mx.cpu(1)]
    net.initialize(mx.init.Xavier(), ctx=places)
    net.hybridize()
    x = image(rng)
    first = [net(x.as_in_context(place)).asnumpy() for place in places]
    np.testing.assert_array_equal(first[1], first[0])
    write_unseen(net[0].weight.data(places[0]))
    for place in places:  # both stay as they were
        np.testing.assert_array_equal(net(x.as_in_context(place)).asnumpy(), first[0])
    expect_held(2)


def test_threads(rng):
    """Each thread has its net, as MXNet wants it; all have the same parameters."""
    first, errors = make(True), []
    nets = [first, *(small(params=first.collect_params()) for _ in range(3))]
    for net in nets[1:]:
        ops.swap_block(net, regions=True, frozen=True)
        net.hybridize()
    images = [image(rng, 1 + number % 2) for number in range(len(nets))]
    expected = [first(x).asnumpy() for x in images]

    def work(net, x, y) -> None:
        try:
            for _ in range(5):
                np.testing.assert_array_equal(net(x).asnumpy(), y)
                ops.refresh(net)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=each) for each in zip(nets, images, expected)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors and not any(thread.is_alive() for thread in threads)


@pytest.mark.parametrize("hybrid", [{}, {"static_alloc": True, "static_shape": True}], ids=["plain", "static"])
def test_what_was_read_is_freed(rng, hybrid):
    """At once, not by a garbage collection: it may be larger than the net."""
    net, x, numbers = make(True, **hybrid), image(rng), set()
    gc.collect()
    gc.disable()
    try:
        for _ in range(4):
            net(x).wait_to_read()
            (found,) = held._known.values()
            (program,) = found._programs.values()
            numbers.add(found.number)
            references = weakref.ref(found), weakref.ref(program)
            del found, program
            ops.refresh(net)
            expect_gone(*references)
    finally:
        gc.enable()
    assert len(numbers) == 1 and not changes._watched


@pytest.mark.exhaustive
def test_few_shapes_stay_compiled(rng):
    net = make(True)
    for batch in range(1, 4 + held.MOST_PROGRAMS):
        net(image(rng, batch)).wait_to_read()
    (found,) = held._known.values()
    assert len(found._programs) == held.MOST_PROGRAMS


def test_a_hook_sees_every_operator(rng):
    net, x, names = make(True), image(rng), []
    expected = net(x)
    net.register_op_hook(lambda name, operator, _: names.append(name), monitor_all=True)
    equal(net(x), expected)
    assert any(b"weight" in name for name in names)


def test_a_learned_array_is_frozen_with_its_net(rng):
    class Shifted(gluon.HybridBlock):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            with self.name_scope():
                self.shift = self.params.get("shift", shape=(2, 4), init=mx.init.One())
                self.dense = nn.Dense(4, in_units=4)

        def hybrid_forward(self, F, x, scale, shift):
            return F.tanh((self.dense(x) + shift) * scale)

    net = Shifted(prefix="net_")
    net.initialize()
    x, scale = mx.nd.array(random(rng, 2, 4)), mx.nd.array(random(rng, 2, 4))
    expected = net(x, scale), net(x, scale * 2)
    ops.swap_block(net, regions=True, frozen=True)
    net.hybridize()
    equal(net(x, scale), expected[0])
    equal(net(x, scale * 2), expected[1])  # an input is none of the parameters
    before = net(x, scale).asnumpy()
    write_unseen(net.shift.data())
    np.testing.assert_array_equal(net(x, scale).asnumpy(), before)
