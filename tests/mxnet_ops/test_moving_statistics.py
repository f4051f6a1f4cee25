"""Moving statistics of batch norm are those of the last step for those who read them without waiting."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

from clgraft.mxnet_ops import swap_block, swap_symbol
from tests.mxnet_ops.operator_checks import MODES, assert_close, random

REPEATS = 4


def symbol() -> mx.sym.Symbol:
    x = mx.sym.Convolution(mx.sym.var("data"), kernel=(3, 3), num_filter=8, pad=(1, 1), name="c1")
    x = mx.sym.Activation(mx.sym.BatchNorm(x, fix_gamma=False, name="b1"), act_type="relu")
    x = mx.sym.Pooling(x, kernel=(2, 2), stride=(2, 2), pool_type="max")
    return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.Flatten(x), num_hidden=10, name="f1"), name="softmax")


class Waiting(mx.mod.Module):
    """A module whose parameters are read when everything is done."""

    def get_params(self):
        mx.nd.waitall()
        return super().get_params()


def fitted(net: mx.sym.Symbol, kind: type) -> dict:
    rng = np.random.default_rng(0)
    images, labels = random(rng, 96, 1, 12, 12), rng.integers(0, 10, 96).astype("float32")
    mx.random.seed(1)
    np.random.seed(1)
    module = kind(net, context=mx.cpu())
    batches = mx.io.NDArrayIter(images, labels, 32, label_name="softmax_label")
    module.fit(batches, num_epoch=2, optimizer="sgd", initializer=mx.init.Xavier(rnd_type="uniform"))
    mx.nd.waitall()
    return {name: array.asnumpy() for name, array in module.get_params()[1].items()}


@pytest.mark.parametrize("regions", [False, True], ids=["single", "regions"])
def test_module_fit_loses_no_update(regions):
    swapped, _ = swap_symbol(symbol(), regions=regions)
    expected, native = fitted(swapped, Waiting), fitted(symbol(), mx.mod.Module)
    for _ in range(REPEATS):
        got = fitted(swapped, mx.mod.Module)
        for name, array in expected.items():
            np.testing.assert_array_equal(got[name], array, err_msg=name)
            assert_close(got[name], native[name], what=name)


def net() -> gluon.Block:
    block = nn.HybridSequential(prefix="n_")
    with block.name_scope():
        block.add(nn.Conv2D(16, 3, in_channels=8), nn.BatchNorm(in_channels=16), nn.Activation("relu"))
        block.add(nn.Conv2D(16, 3, in_channels=16), nn.BatchNorm(in_channels=16))
    block.initialize(mx.init.Xavier())
    return block


@pytest.mark.parametrize("mode", MODES)
def test_parameters_saved_right_after_a_step_are_those_of_that_step(mode, rng, tmp_path):
    x = mx.nd.array(random(rng, 8, 8, 32, 32))
    early, late = str(tmp_path / "early.params"), str(tmp_path / "late.params")
    for _ in range(REPEATS):
        block = net()
        swap_block(block)
        if mode != "plain":
            block.hybridize(static_alloc=mode == "static", static_shape=mode == "static")
        trainer = gluon.Trainer(block.collect_params(), "sgd", {"learning_rate": 0.01})
        for _ in range(2):
            with autograd.record():
                loss = (block(x) ** 2).mean()
            loss.backward()
            trainer.step(8)
        block.save_parameters(early)
        mx.nd.waitall()
        block.save_parameters(late)
        one, other = mx.nd.load(early), mx.nd.load(late)
        for name in one:
            np.testing.assert_array_equal(one[name].asnumpy(), other[name].asnumpy(), err_msg=name)


def states_after(step, swap: bool, rng_seed: int = 5) -> list:
    """Run a step of two nets, one after the other, and read all moving statistics without waiting."""
    rng = np.random.default_rng(rng_seed)
    x = mx.nd.array(random(rng, 8, 8, 32, 32))
    mx.random.seed(7)
    nets = [net(), net()]
    for block in nets:
        if swap:
            swap_block(block)
        block.hybridize()
    step(nets, x)
    found = [p.data().asnumpy() for block in nets for n, p in block.collect_params().items() if "running" in n]
    mx.nd.waitall()
    return found


def two_losses(nets, x) -> None:
    with autograd.record():
        losses = [(block(x.copy()) ** 2).mean() for block in nets]  # MXNet clears a shared input's graph
    losses[0].backward()
    losses[1].backward()


def forward_only(nets, x) -> None:
    with autograd.record():
        for block in nets:
            block(x)


def frozen(nets, x) -> None:
    nets[0].collect_params().setattr("grad_req", "null")
    with autograd.record():
        loss = (nets[1](x) ** 2).mean() + (nets[0](x) ** 2).mean()
    loss.backward()


@pytest.mark.parametrize("step", [two_losses, forward_only, frozen], ids=lambda step: step.__name__)
def test_statistics_are_updated_when_mxnets_are(step):
    for _ in range(REPEATS):
        for one, other in zip(states_after(step, True), states_after(step, False)):
            assert_close(one, other)


def test_an_executors_states_are_those_of_its_last_backward(rng):
    results = []
    arrays = {"data": random(rng, 8, 4, 24, 24), "softmax_label": np.zeros(8, "float32")}
    for net_symbol in (symbol(), swap_symbol(symbol())[0]):
        executor = net_symbol.simple_bind(mx.cpu(), data=(8, 4, 24, 24))
        for name, array in executor.arg_dict.items():
            array[:] = arrays.get(name, np.linspace(-0.2, 0.3, array.size, dtype="float32").reshape(array.shape))
        found = []
        for _ in range(REPEATS):
            executor.forward(is_train=True)
            executor.backward()
            if not results:
                mx.nd.waitall()  # MXNet's own executors let readers go ahead of the update
            found += [executor.aux_dict[name].asnumpy() for name in sorted(executor.aux_dict)]
        results.append(found)
    for other, one in zip(*results):
        assert_close(one, other)
