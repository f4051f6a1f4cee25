"""Frozen parameters of regions in symbols, executors, modules and files."""

from __future__ import annotations

import json

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon

import clgraft.mxnet_ops as ops
from clgraft import core
from tests.mxnet_ops.frozen_nets import SHAPE, equal, expect_held, image, make, small, write_unseen
from tests.mxnet_ops.operator_checks import assert_close, random

sym = mx.sym


@pytest.fixture(autouse=True)
def nothing_held():
    """Begin without constants of other tests."""
    ops.refresh()
    expect_held(0)


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
