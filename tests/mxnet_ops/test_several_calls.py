"""Moving statistics of a net that runs several times in one recording are MXNet's, whatever the order of the graph."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

import clgraft.mxnet_ops as ops
from clgraft.mxnet_ops import swap_block, swap_symbol
from clgraft.mxnet_ops.engine import residents
from clgraft.mxnet_ops.engine.residents import resident_of
from tests.mxnet_ops.operator_checks import MODES, assert_close, random

REPEATS = 6
SCALES = (1, 5, 25)  # of the inputs: their statistics tell the order of the updates


def discriminator(first: int = 3) -> gluon.Block:
    block = nn.HybridSequential(prefix="d_")
    with block.name_scope():
        block.add(nn.Dense(7, in_units=first), nn.BatchNorm(in_channels=7), nn.Activation("relu"))
        block.add(nn.Dense(5, in_units=7), nn.BatchNorm(in_channels=5, momentum=0.75))
    return block


class Generating(gluon.HybridBlock):
    """A generator in front of a discriminator that is called for both: the generator's variables come first."""

    def __init__(self) -> None:
        super().__init__(prefix="g_")
        with self.name_scope():
            self.generator = nn.HybridSequential(prefix="g_")
            self.generator.add(nn.Dense(3, in_units=3), nn.Activation("softrelu"))
            self.inner = discriminator()

    def hybrid_forward(self, F, x):
        return self.inner(self.generator(x))


class Siamese(gluon.HybridBlock):
    """A net that calls its layers several times in one call of its own."""

    def __init__(self) -> None:
        super().__init__(prefix="s_")
        with self.name_scope():
            self.inner = discriminator()

    def hybrid_forward(self, F, x):
        return self.inner(x) + 2 * F.sin(self.inner(3 * x)) + self.inner(5 * x * x)


def cubed(y: mx.nd.NDArray) -> mx.nd.NDArray:
    return (y**3).sum()


def inputs() -> list[mx.nd.NDArray]:
    rng = np.random.default_rng(4)
    return [mx.nd.array(random(rng, 11, 3) * scale + scale) for scale in SCALES]


def three_calls(net, x) -> None:
    with autograd.record():
        losses = [cubed(net(one)) for one in x]
        loss = losses[0] + losses[1] + losses[2]
    loss.backward()


def in_the_order_of_the_graph(net, x) -> None:
    with autograd.record():
        losses = [cubed(net(one)) for one in x]
        loss = losses[1] + (losses[2] + losses[0])
    loss.backward()


def several_heads(net, x) -> None:
    with autograd.record():
        losses = [cubed(net(one)) for one in x]
    autograd.backward([losses[2], losses[0], losses[1]])


def one_call_without_backward(net, x) -> None:
    with autograd.record():
        losses = [cubed(net(one)) for one in x]
        loss = losses[0] + losses[2]
    loss.backward()


def one_after_the_other(net, x) -> None:
    with autograd.record():
        losses = [cubed(net(one)) for one in x]
    losses[0].backward(retain_graph=True)
    autograd.backward([losses[1], losses[2]])


def twice(net, x) -> None:
    with autograd.record():
        loss = cubed(net(x[0])) + cubed(net(x[1]))
    loss.backward(retain_graph=True)
    loss.backward()


def gradients_of_given_arrays(net, x) -> None:
    x[1].attach_grad()
    with autograd.record():
        loss = cubed(net(x[0])) + cubed(net(x[1])) + cubed(net(x[2]))
    autograd.grad(loss, [x[1], net.collect_params()["d_dense0_weight"].data()])


def of_what_another_net_made(net, x) -> None:
    mx.random.seed(9)
    other = nn.Dense(3, in_units=3)
    other.initialize(mx.init.Xavier())
    with autograd.record():
        loss = cubed(net(other(x[0]))) + cubed(net(x[1]))
    loss.backward()


CASES = (
    three_calls,
    in_the_order_of_the_graph,
    several_heads,
    one_call_without_backward,
    one_after_the_other,
    twice,
    gradients_of_given_arrays,
    of_what_another_net_made,
)


def statistics(net: gluon.Block) -> dict[str, np.ndarray]:
    return {name: p.data().asnumpy() for name, p in net.collect_params().items() if "running" in name}


def after(
    case, mode: str, regions: bool | None, make=discriminator, steps: int = 2, kind=gluon.Trainer
) -> dict[str, np.ndarray]:
    """Return the moving statistics after some steps, of MXNet's own net where `regions` is None."""
    mx.random.seed(1)
    net = make()
    net.initialize(mx.init.Xavier())
    if regions is not None:
        swap_block(net, regions=regions)
    if mode != "plain":
        net.hybridize(static_alloc=mode == "static", static_shape=mode == "static")
    trainer = kind(net.collect_params(), "sgd", {"learning_rate": 1e-9})
    for _ in range(steps):
        case(net, inputs())
        trainer.step(1, ignore_stale_grad=True)
        if regions is None:
            mx.nd.waitall()  # MXNet's own static graphs let readers go ahead of the update
    if kind is ops.Trainer:
        assert {resident_of(p._data[0]).place for p in net.collect_params().values()} == {"device"}
    return statistics(net)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
@pytest.mark.parametrize("regions", [False, True], ids=["single", "regions"])
@pytest.mark.parametrize("mode", MODES)
def test_statistics_are_mxnets(mode, regions, case):
    native = after(case, mode, None)
    first = after(case, mode, regions)
    for name, array in native.items():
        assert_close(first[name], array, what=name)
    for _ in range(REPEATS):
        for name, array in after(case, mode, regions).items():
            np.testing.assert_array_equal(array, first[name], err_msg=name)


@pytest.mark.parametrize("make", [Siamese, Generating])
@pytest.mark.parametrize("case", [three_calls, in_the_order_of_the_graph], ids=lambda case: case.__name__)
@pytest.mark.parametrize("regions", [False, True], ids=["single", "regions"])
@pytest.mark.parametrize("mode", MODES)
def test_statistics_of_nets_that_call_their_layers_several_times(mode, regions, case, make):
    native = after(case, mode, None, make)
    for _ in range(REPEATS):
        for name, array in after(case, mode, regions, make).items():
            assert_close(array, native[name], what=name)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
@pytest.mark.parametrize("kind", [gluon.Trainer, ops.Trainer], ids=["gluon", "ours"])
@pytest.mark.parametrize("mode", MODES[1:])
def test_statistics_on_a_device_with_memory_of_its_own(mode, kind, case, staged):
    if kind is ops.Trainer and case is gradients_of_given_arrays:
        pytest.skip("gradients of parameters that are on the device are no arrays of MXNet's")
    native = after(case, mode, None, steps=3)
    first = after(case, mode, True, steps=3, kind=kind)
    for name, array in native.items():
        assert_close(first[name], array, what=name)
    for _ in range(REPEATS // 2):
        for name, array in after(case, mode, True, steps=3, kind=kind).items():
            np.testing.assert_array_equal(array, first[name], err_msg=name)


@pytest.mark.parametrize("make", [Siamese, Generating])
@pytest.mark.parametrize("mode", MODES[1:])
def test_nets_that_call_their_layers_several_times_on_such_a_device(mode, make, staged):
    native = after(in_the_order_of_the_graph, mode, None, make)
    for name, array in after(in_the_order_of_the_graph, mode, True, make, kind=ops.Trainer).items():
        assert_close(array, native[name], what=name)


def shared_norm(third) -> mx.sym.Symbol:
    """Return a symbol with one batch norm's variables in three places, to the last of which a function is applied."""
    weight, own = mx.sym.var("weight"), [mx.sym.var(name) for name in ("gamma", "beta", "mean", "var")]
    norms = []
    for name in ("a", "b", "c"):
        x = mx.sym.FullyConnected(mx.sym.var(name), weight, no_bias=True, num_hidden=4)
        norms.append(mx.sym.BatchNorm(x, *own, fix_gamma=False, momentum=0.7))
    return mx.sym.MakeLoss(mx.sym.sin(norms[1]) * norms[0] + third(norms[2]))


@pytest.mark.parametrize(
    "regions, third",
    [(False, mx.sym.square), (True, mx.sym.square), (False, mx.sym.BlockGrad)],
    ids=["single", "regions", "no gradient"],
)
def test_an_executors_shared_states_are_mxnets(regions, third):
    found = []
    for net in (shared_norm(third), swap_symbol(shared_norm(third), regions=regions)[0]):
        requests = {name: "null" if regions and name in "abc" else "write" for name in net.list_arguments()}
        executor = net.simple_bind(mx.cpu(), requests, a=(11, 3), b=(11, 3), c=(11, 3))
        for name, x in zip("abc", inputs()):
            executor.arg_dict[name][:] = x
        for name, scale in (("weight", 0.3), ("gamma", 0.4), ("beta", 0.1)):
            array = executor.arg_dict[name]
            array[:] = np.linspace(-scale, scale, array.size, dtype="float32").reshape(array.shape)
        for _ in range(REPEATS):
            executor.forward(is_train=True)
            executor.backward()
            if not found:
                mx.nd.waitall()  # MXNet's own executors let readers go ahead of the update
        found.append({name: array.asnumpy() for name, array in executor.aux_dict.items()})
    for name, array in found[0].items():
        assert_close(found[1][name], array, what=name)


@pytest.mark.parametrize("dtype", ["float64", "float16"])
@pytest.mark.parametrize("mode", MODES)
def test_statistics_of_other_types(mode, dtype):
    """In float16 the parameters of a norm are float16, too, where it is called by itself."""
    rng = np.random.default_rng(6)
    arrays = [mx.nd.array(random(rng, 9, 5) * scale + scale, dtype=dtype) for scale in SCALES]
    net = nn.HybridSequential(prefix="n_")
    with net.name_scope():
        net.add(nn.BatchNorm(in_channels=5, momentum=0.75))
    net.initialize()
    net.cast(dtype)
    for parameter in net.collect_params().values():
        parameter.cast(dtype)
    swap_block(net, regions=False)
    if mode != "plain":
        net.hybridize(static_alloc=mode == "static", static_shape=mode == "static")
    with autograd.record():
        loss = cubed(net(arrays[0])) + cubed(net(arrays[1])) + cubed(net(arrays[2]))
    loss.backward()
    expected = np.zeros(5), np.ones(5)
    for x in reversed(arrays):
        elements = x.asnumpy().astype("float64")
        expected = tuple(0.75 * a + 0.25 * s for a, s in zip(expected, (elements.mean(0), elements.var(0))))
    for array, name in zip(expected, ("mean", "var")):
        got = net.collect_params()[f"n_batchnorm0_running_{name}"].data()
        assert np.dtype(got.dtype).name == dtype
        assert_close(got.asnumpy(), array, dtype, what=name)


def test_calls_without_a_backward_keep_a_bounded_number_of_tokens(staged, monkeypatch):
    """Later calls take their places; what a backward then does is still right."""
    monkeypatch.setattr(residents, "MOST_CALLS", 3)

    def after_others(net, x) -> None:
        with autograd.record():
            for _ in range(5):
                net(x[2])
        with autograd.record():
            loss = cubed(net(x[0]))
        loss.backward()

    homes = set(residents._homes)
    native = after(after_others, "hybrid", None)
    found = after(after_others, "hybrid", True, kind=ops.Trainer)
    for name, array in native.items():
        assert_close(found[name], array, what=name)
    (home,) = set(residents._homes) - homes
    assert len(home._tokens) <= 3
