"""Frozen parameters of regions: inference reads them once, and again after training, writes and `refresh`."""

from __future__ import annotations

import gc
import json
import threading
import time
import weakref

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon
from mxnet.gluon import nn

import clgraft.mxnet_ops as ops
from clgraft import core
from clgraft.mxnet_ops.engine import changes
from clgraft.mxnet_ops.regions import constants, passes
from tests.mxnet_ops.graft_checks import assert_close, random

sym = mx.sym
SHAPE = (2, 3, 8, 8)


@pytest.fixture(autouse=True)
def nothing_held():
    """Begin without constants of other tests."""
    ops.refresh()
    expect_held(0)


@pytest.fixture
def no_passes(monkeypatch):
    monkeypatch.setenv("CLGRAFT_GRAPH", "-all")


def small(norm: bool = True, **shared) -> nn.HybridSequential:
    """Return a net whose weights are prepared, folded or read as they are."""
    net = nn.HybridSequential(prefix="net_", **shared)
    with net.name_scope():
        net.add(nn.Conv2D(8, 3, padding=1), *[nn.BatchNorm()] * norm, nn.Activation("relu"))
        net.add(nn.Conv2D(8, 3, padding=1, groups=8), nn.Conv2D(16, 1), nn.Dense(5))
    return net


def make(frozen: bool, source: gluon.Block | None = None, dtype: str = "float32", **hybrid) -> nn.HybridSequential:
    """Return a swapped net, with the parameters of another one."""
    net = small(norm=dtype != "float16")  # whose batch norms Gluon keeps in float32
    report = ops.swap_block(net, regions=True, frozen=frozen)
    assert bool(report.frozen) == frozen
    net.initialize(mx.init.Xavier(magnitude=3))
    net.cast(dtype)
    net.hybridize(**hybrid)
    net(mx.nd.zeros(SHAPE, dtype=dtype))
    own = net.collect_params().values()
    rng = np.random.default_rng(3)
    values = (
        [0.3 * random(rng, *p.shape) for p in own]
        if source is None
        else [p.data() for p in source.collect_params().values()]
    )
    for parameter, value in zip(own, values):
        positive = source is None and parameter.name.endswith(("gamma", "var"))
        parameter.set_data(mx.nd.array(0.5 + np.abs(value) if positive else value, dtype=dtype))
    return net


def image(rng, batch: int = 2, dtype: str = "float32") -> mx.nd.NDArray:
    return mx.nd.array(random(rng, batch, *SHAPE[1:], dtype=dtype), dtype=dtype)


def write_unseen(array: mx.nd.NDArray) -> None:
    """Change an array in a way that nothing notices."""
    mx.nd.sgd_update(array, mx.nd.ones_like(array), lr=0.5, out=array)
    array.wait_to_read()


def equal(got, expected, dtype: str = "float32") -> None:
    assert_close(got.asnumpy(), expected.asnumpy(), dtype)


def expect_held(count: int) -> None:
    """Check how many regions have constants."""
    gc.collect()
    assert len(constants._known) == count


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
            (found,) = constants._known.values()
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
    for batch in range(1, 4 + constants.MOST_PROGRAMS):
        net(image(rng, batch)).wait_to_read()
    (found,) = constants._known.values()
    assert len(found._programs) == constants.MOST_PROGRAMS


def symbol() -> mx.sym.Symbol:
    first = sym.Convolution(sym.var("data"), kernel=(3, 3), num_filter=4, name="conv")
    norm = sym.BatchNorm(first, fix_gamma=False, name="norm")
    native = sym.arctan(sym.Activation(norm, act_type="relu", name="relu"), name="native")
    dense = sym.FullyConnected(sym.tanh(native, name="tanh"), num_hidden=5, name="dense")
    return sym.SoftmaxOutput(dense, name="softmax")


def executors(rng, **shapes):
    """Return executors of the symbol with regions, plain and frozen, with equal arrays."""
    found = [ops.swap_symbol(symbol(), regions=True, frozen=frozen)[0] for frozen in (False, True)]
    bound = [each.simple_bind(mx.cpu(), **shapes) for each in found]
    for own, other in zip(*({**each.arg_dict, **each.aux_dict}.items() for each in bound)):
        value = np.abs(random(rng, *own[1].shape)) + 0.5
        own[1][:] = other[1][:] = value
    return bound


def test_an_executor(rng):
    plain, frozen = executors(rng, data=SHAPE)
    output = frozen.outputs[0]
    for _ in range(2):
        x = random(rng, *SHAPE)
        equal(frozen.forward(is_train=False, data=x)[0], plain.forward(is_train=False, data=x)[0])
        equal(output, plain.outputs[0])  # its own outputs are written
    before = output.asnumpy()
    write_unseen(frozen.arg_dict["conv_weight"])
    np.testing.assert_array_equal(frozen.forward()[0].asnumpy(), before)
    frozen.arg_dict["conv_weight"][:] = plain.arg_dict["conv_weight"][:] = 0.25
    equal(frozen.forward()[0], plain.forward()[0])
    for each in (plain, frozen):
        each.forward(is_train=True)
        each.backward()
        each.aux_dict["norm_moving_mean"].wait_to_read()
    equal(frozen.grad_dict["conv_weight"], plain.grad_dict["conv_weight"])
    equal(frozen.forward()[0], plain.forward()[0])
    with pytest.raises(TypeError):
        frozen.forward(is_train=False, nothing=x)
    with pytest.raises(ValueError, match="Shape"):
        frozen.forward(is_train=False, data=x[:1])


def test_a_monitor_sees_every_output(rng):
    _, frozen = executors(rng, data=SHAPE)
    frozen.forward()
    names = []
    frozen.set_monitor_callback(lambda name, _: names.append(name))
    frozen.forward()
    mx.nd.waitall()
    assert b"native_output" in names


def test_a_hook_sees_every_operator(rng):
    net, x, names = make(True), image(rng), []
    expected = net(x)
    net.register_op_hook(lambda name, operator, _: names.append(name), monitor_all=True)
    equal(net(x), expected)
    assert any(b"weight" in name for name in names)


def test_a_module(rng):
    found = []
    x, labels = random(rng, 6, *SHAPE[1:]), rng.integers(0, 5, 6).astype("float32")
    for frozen in (False, True):
        swapped, _ = ops.swap_symbol(symbol(), regions=True, frozen=frozen)
        module = mx.mod.Module(swapped, context=mx.cpu())
        data = mx.io.NDArrayIter(x, labels, 3)
        mx.random.seed(5)
        np.random.seed(5)
        predictions = []
        module.bind(data.provide_data, data.provide_label)
        module.init_params(mx.init.Xavier())
        module.init_optimizer(optimizer_params={"learning_rate": 0.1})
        for _ in range(2):
            predictions.append(module.predict(data).asnumpy())
            data.reset()
            module.fit(data, num_epoch=1, eval_data=data)
        predictions.append(module.predict(data).asnumpy())
        arguments, states = module.get_params()
        module.set_params({name: array * 0.5 for name, array in arguments.items()}, states)
        predictions.append(module.predict(data).asnumpy())
        found.append(predictions)
    for one, other in zip(*found):
        assert_close(other, one)
    assert not np.allclose(found[0][0], found[0][1])


def test_files_keep_it(rng, tmp_path):
    net, x = make(True), image(rng)
    expected = net(x)
    net.export(str(tmp_path / "net"))
    nodes = json.loads((tmp_path / "net-symbol.json").read_text())["nodes"]
    (region,) = [node for node in nodes if node.get("attrs", {}).get("op_type") == "ocl_region"]
    assert sorted(json.loads(region["attrs"]["frozen"])) == sorted(net.collect_params())
    assert "constants" not in region["attrs"]
    again = gluon.SymbolBlock.imports(str(tmp_path / "net-symbol.json"), ["data"], str(tmp_path / "net-0000.params"))
    again.hybridize()
    np.testing.assert_array_equal(again(x).asnumpy(), expected.asnumpy())
    expect_held(2)
    write_unseen(again.collect_params()["net_conv0_weight"].data())
    np.testing.assert_array_equal(again(x).asnumpy(), expected.asnumpy())


def test_an_imported_net_is_frozen(rng, tmp_path):
    net = small()
    net.initialize()
    net.hybridize()
    x = image(rng)
    expected = net(x)
    net.export(str(tmp_path / "net"))
    again = gluon.SymbolBlock.imports(str(tmp_path / "net-symbol.json"), ["data"], str(tmp_path / "net-0000.params"))
    report = ops.swap_block(again, regions=True, frozen=True)
    assert sorted(name for names in report.frozen.values() for name in names) == sorted(net.collect_params())
    equal(again(x), expected)
    expect_held(1)


def test_parameters_in_layouts_of_onednn(rng):
    """MXNet's convolutions leave them in layouts of their own, in inference."""
    net = small()
    net.initialize(mx.init.Xavier())
    net.hybridize()
    x = image(rng)
    for _ in range(2):
        expected = net(x)
    shared = small(params=net.collect_params())
    ops.swap_block(shared, regions=True, frozen=True)
    shared.hybridize(static_alloc=True, static_shape=True)
    for _ in range(3):
        equal(shared(x), expected)
        equal(net(x), expected)
        ops.refresh(shared)


def test_which_variables_are_frozen():
    swapped, report = ops.swap_symbol(symbol(), regions=True, frozen=True)
    assert swapped.list_inputs() == ops.swap_symbol(symbol(), regions=True)[0].list_inputs()
    norm = {"norm_gamma", "norm_beta", "norm_moving_mean", "norm_moving_var"}
    assert {name: set(found) for name, found in report.frozen.items()} == {
        "relu": {"conv_weight", "conv_bias", *norm},
        "softmax": {"dense_weight", "dense_bias"},
    }
    assert "frozen: relu (6 arrays), softmax (2 arrays)" in str(report)
    _, report = ops.swap_symbol(symbol(), regions=True, frozen=["dense_bias"])
    assert set(report.frozen["softmax"]) == {"dense_bias"}
    assert not ops.swap_symbol(symbol(), regions=True)[1].frozen
    swapped, report = ops.swap_symbol(ops.swap_symbol(symbol(), regions=True)[0], regions=True, frozen=True)
    assert set(report.frozen) == {"relu", "softmax"}


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


def test_errors(rng):
    with pytest.raises(core.ProblemError, match=r"\[swap\] got frozen without regions"):
        ops.swap_symbol(symbol(), frozen=True, regions=False)
    with pytest.raises(core.ProblemError, match=r"\[swap\] got frozen without regions"):
        ops.swap_block(small(), frozen=True, regions=False)
    with pytest.raises(core.ProblemError, match=r"\[swap\] got frozen 'nothing', expected some of"):
        ops.swap_symbol(symbol(), frozen=["nothing"], regions=True)
    text = ops.swap_symbol(symbol(), regions=True, frozen=True)[0].tojson()
    attributes = next(node["attrs"] for node in json.loads(text)["nodes"] if "frozen" in node.get("attrs", {}))
    with pytest.raises(core.ProblemError, match=r"\[ocl_region\] got frozen '\[\"x\"\]', expected a JSON list"):
        mx.sym.Custom(op_type="ocl_region", graph=attributes["graph"], frozen='["x"]')
