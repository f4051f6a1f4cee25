"""Native, ours, native: MXNet frees what it hands to Custom operators, and it must not matter."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon

import clgraft.mxnet_ops as clgraft_ops
from clgraft.mxnet_ops.engine import calls
from clgraft.mxnet_ops.guards import guard, unguard
from tests.folders import ROOT
from tests.mxnet_ops.operator_checks import MODES, assert_close, evaluate, random

REPEATS = 8


class Chain(gluon.HybridBlock):
    """Native convolutions around clgraft operators; one weight is used by a native and by one of ours."""

    def __init__(self, ours: bool) -> None:
        super().__init__(prefix="chain_")
        self.ours = ours
        with self.name_scope():
            for name, shape in (("first", (32, 8, 3, 3)), ("shared", (32, 32, 3, 3)), ("last", (16, 32, 3, 3))):
                setattr(self, name, self.params.get(name, shape=shape))
            self.gamma, self.beta = (self.params.get(name, shape=(32,)) for name in ("gamma", "beta"))
            self.mean = self.params.get("mean", shape=(32,), grad_req="null", init="zeros")
            self.var = self.params.get("var", shape=(32,), grad_req="null", init="ones")

    def hybrid_forward(self, F, x, first, shared, last, gamma, beta, mean, var):
        same = {"kernel": (3, 3), "pad": (1, 1), "no_bias": True}
        x = F.Convolution(x, first, num_filter=32, **same)
        x = F.Convolution(x, shared, num_filter=32, **same)
        if self.ours:
            x = F.Custom(x, shared, op_type="ocl_conv", num_filter=32, **same)
            x = F.Convolution(x, shared, num_filter=32, **same)
            x = F.Custom(x, gamma, beta, mean, var, op_type="ocl_batchnorm", fix_gamma=False)
            y = F.Pooling(x, kernel=(3, 3), pad=(1, 1), pool_type="max")
            x = F.Custom(F.Custom(x, y, op_type="ocl_eltwise"), op_type="ocl_activation", act_type="tanh")
        else:
            x = F.Convolution(x, shared, num_filter=32, **same)
            x = F.Convolution(x, shared, num_filter=32, **same)
            x = F.BatchNorm(x, gamma, beta, mean, var, fix_gamma=False)
            y = F.Pooling(x, kernel=(3, 3), pad=(1, 1), pool_type="max")
            x = F.Activation(F.broadcast_add(x, y), act_type="tanh")
        return F.Convolution(x, last, num_filter=16, **same)


def native_case() -> tuple:
    """Input, parameters, and what the native chain gives: training output, inference output, gradients."""
    rng = np.random.default_rng(3)
    native = Chain(False)
    native.initialize()
    for parameter in native.collect_params().values():
        scale = 0.1 if len(parameter.shape) == 4 else 1.0
        if parameter.grad_req != "null":
            parameter.set_data(mx.nd.array(scale * random(rng, *parameter.shape)))
    values = {name: parameter.data().asnumpy() for name, parameter in native.collect_params().items()}
    x, head = random(rng, 4, 8, 19, 17), random(rng, 4, 16, 19, 17)
    return x, head, values, run_block(native, values, x, head)


@pytest.fixture(scope="module")
def case() -> tuple:
    return native_case()


def run_block(block, values, x, head) -> dict:
    parameters = block.collect_params()
    for name, parameter in parameters.items():
        parameter.set_data(mx.nd.array(values[name]))
    data = mx.nd.array(x)
    data.attach_grad()
    found = {"inference": block(data).asnumpy()}
    with mx.autograd.record():
        y = block(data)
    y.backward(mx.nd.array(head))
    mx.nd.waitall()
    found.update(output=y.asnumpy(), data=data.grad.asnumpy())
    found.update({name: p.grad().asnumpy() for name, p in parameters.items() if p.grad_req != "null"})
    found.update({name: p.data().asnumpy() for name, p in parameters.items() if p.grad_req == "null"})
    return found


def same(got: dict, expected: dict) -> None:
    assert set(got) == set(expected)
    for name, value in expected.items():
        assert_close(got[name], value, what=name)


@pytest.mark.parametrize("mode", MODES)
def test_written_by_hand_in_gluon(mode, case):
    x, head, values, expected = case
    block = Chain(True)
    block.initialize()
    if mode != "plain":
        block.hybridize(static_alloc=mode == "static", static_shape=mode == "static")
    for _ in range(REPEATS):
        same(run_block(block, values, x, head), expected)


@pytest.mark.parametrize("select", [["Convolution"], ["BatchNorm"], ["Activation", "broadcast_add"], None], ids=str)
@pytest.mark.parametrize("mode", MODES)
def test_swapped_in_part(mode, select, case):
    x, head, values, expected = case
    block = Chain(False)
    block.initialize()
    clgraft_ops.swap_block(block, select=select)
    if mode != "plain":
        block.hybridize(static_alloc=mode == "static", static_shape=mode == "static")
    for _ in range(3):
        same(run_block(block, values, x, head), expected)


def traced() -> mx.sym.Symbol:
    return Chain(True)(mx.sym.var("data"))


def as_block(symbol, values) -> gluon.SymbolBlock:
    block = gluon.SymbolBlock(symbol, mx.sym.var("data"))
    block.initialize()
    for name, parameter in block.collect_params().items():
        parameter.shape = values[name].shape
        parameter.initialize(force_reinit=True)
    return block


def test_written_by_hand_in_a_symbol_block(case):
    x, head, values, expected = case
    block = as_block(traced(), values)
    for _ in range(REPEATS):
        same(run_block(block, values, x, head), expected)


def test_written_by_hand_in_a_module(case):
    x, head, values, expected = case
    module = mx.mod.Module(traced(), data_names=["data"], label_names=None)
    module.bind([("data", x.shape)], inputs_need_grad=True)
    arguments = {k: mx.nd.array(v) for k, v in values.items() if k in module.symbol.list_arguments()}
    states = {k: mx.nd.array(v) for k, v in values.items() if k in module.symbol.list_auxiliary_states()}
    for _ in range(REPEATS):
        module.init_params(arg_params=arguments, aux_params=states, force_init=True)
        batch = mx.io.DataBatch([mx.nd.array(x)])
        module.forward(batch, is_train=False)
        found = {"inference": module.get_outputs()[0].asnumpy()}
        module.forward(batch, is_train=True)
        found["output"] = module.get_outputs()[0].asnumpy()
        module.backward([mx.nd.array(head)])
        mx.nd.waitall()
        gradients = zip(module._param_names, module._exec_group.grad_arrays)
        found.update({name: arrays[0].asnumpy() for name, arrays in gradients})
        found["data"] = module.get_input_grads()[0].asnumpy()
        found.update({name: array.asnumpy() for name, array in module._exec_group.execs[0].aux_dict.items()})
        same(found, expected)


def test_symbols_have_no_guards_and_cached_graphs_do(case, tmp_path):
    x, head, values, expected = case
    symbol = traced()
    assert guard.MARK not in symbol.tojson()
    written = clgraft_ops.guard_symbol(symbol)  # as files of earlier versions hold it
    assert guard.MARK in written.tojson() and clgraft_ops.guard_symbol(written) is written
    for net, name in ((symbol, "plain"), (written, "guarded")):
        net.save(str(tmp_path / f"{name}-symbol.json"))
        block = as_block(mx.sym.load(str(tmp_path / f"{name}-symbol.json")), values)
        for _ in range(3):
            same(run_block(block, values, x, head), expected)


def test_an_executor_runs_without_guards_and_keeps_names():
    symbol = traced()
    executor = clgraft_ops.guard_symbol(symbol).simple_bind(mx.cpu(), data=(2, 8, 5, 6))
    bound = executor._symbol
    assert guard.MARK not in bound.tojson()
    assert bound.list_arguments() == symbol.list_arguments()
    assert bound.list_auxiliary_states() == symbol.list_auxiliary_states()
    assert bound.list_outputs() == symbol.list_outputs()
    plain = mx.sym.var("x") + 1
    assert unguard.executor_symbol(plain) is plain
    ours = mx.sym.Custom(mx.sym.var("x"), op_type="ocl_activation", act_type="relu", name="a")
    assert list(ours.bind(mx.cpu(), {"x": mx.nd.ones((1, 2))}).output_dict) == ["a_output"]


def test_exported_and_imported(case, tmp_path):
    x, head, values, expected = case
    block = Chain(True)
    block.initialize()
    block.hybridize()
    run_block(block, values, x, head)
    for name, parameter in block.collect_params().items():
        parameter.set_data(mx.nd.array(values[name]))
    block.export(str(tmp_path / "chain"))
    again = gluon.SymbolBlock.imports(
        str(tmp_path / "chain-symbol.json"), ["data"], str(tmp_path / "chain-0000.params")
    )
    same(run_block(again, values, x, head), expected)


def test_names_are_those_that_a_native_operator_would_have():
    x = mx.sym.var("x")
    with mx.name.Prefix("net_"):
        y = mx.sym.Custom(x, op_type="ocl_conv", kernel=(1, 1), num_filter=2, name="c")
        z = mx.sym.Custom(y, op_type="ocl_batchnorm", name="b")
    assert z.list_arguments() == ["x", "net_c_weight", "net_c_bias", "net_b_gamma", "net_b_beta"]
    assert z.list_auxiliary_states() == ["net_b_moving_mean", "net_b_moving_var"]
    assert z.list_outputs() == ["net_b_output"]
    internals = z.get_internals().list_outputs()
    assert len(internals) == len(set(internals)) and "net_c_output" in internals


def test_graphs_look_like_native_ones():
    """No guard is seen by those who list, count or print the operators of a net."""
    x = mx.sym.relu(mx.sym.var("x", dtype="float32"))
    for native in (
        mx.sym.BatchNorm(x, output_mean_var=True, name="b"),
        mx.sym.SliceChannel(x, num_outputs=3, name="s"),
        mx.sym.Group(list(mx.sym.SliceChannel(x, num_outputs=3, name="s"))[1:]),
        mx.sym.Convolution(mx.sym.Convolution(x, kernel=(1, 1), num_filter=2, name="c"), kernel=(1, 1), num_filter=2),
    ):
        swapped, report = clgraft_ops.swap_symbol(native, regions=False)
        assert report.replaced
        assert swapped.list_outputs() == native.list_outputs()
        assert swapped.get_internals().list_outputs() == native.get_internals().list_outputs()
        assert len(json.loads(swapped.tojson())["nodes"]) == len(json.loads(native.tojson())["nodes"])
    by_hand = mx.sym.Custom(x, op_type="ocl_batchnorm", output_mean_var=True, name="b")
    assert by_hand.list_outputs() == ["b_output", "b_mean", "b_var"]
    assert [by_hand[i].list_outputs() for i in range(3)] == [["b_output"], ["b_mean"], ["b_var"]]


def test_guards_inside_of_control_flow(rng):
    """Its parts run as cached graphs, in executors too."""
    data, weight = mx.sym.var("data"), mx.sym.var("weight")
    keys = {"kernel": (3, 3), "pad": (1, 1), "num_filter": 32, "no_bias": True}
    arrays = {"data": random(rng, 3, 4, 32, 9, 9), "weight": 0.1 * random(rng, 32, 32, 3, 3)}

    def run(convolution) -> list:
        def body(x, state):
            y = mx.sym.Convolution(convolution(mx.sym.Convolution(x, weight, **keys), weight), weight, **keys)
            return y, state

        found = []
        symbol, _ = mx.sym.contrib.foreach(body, data, [])
        for _ in range(REPEATS):
            found.append(evaluate(symbol, arrays, [np.ones((3, 4, 32, 9, 9), "float32")]))
        return found

    expected = run(lambda x, w: mx.sym.Convolution(x, w, **keys))[0]
    for got in run(lambda x, w: mx.sym.Custom(x, w, op_type="ocl_conv", **keys)):
        assert_close(got.outputs[0], expected.outputs[0])
        for name in arrays:
            assert_close(got.gradients[name], expected.gradients[name], what=name)


@pytest.mark.parametrize("by_hand", [False, True])
def test_attributes_of_outputs_stay(by_hand):
    """Module joins the outputs of its contexts along the axis that __layout__ names."""
    data, keys = mx.sym.var("data"), {"act_type": "relu", "name": "act", "__layout__": "TNC"}
    native = mx.sym.Activation(data, **keys)
    own = mx.sym.Custom(data, op_type="ocl_activation", **keys) if by_hand else clgraft_ops.swap_symbol(native)[0]
    assert own.attr("__layout__") == "TNC"
    module = mx.mod.Module(own, ("data",), None, context=[mx.cpu(0), mx.cpu(1)])
    module.bind(data_shapes=[mx.io.DataDesc("data", (3, 8, 7), "float32", layout="TNC")])
    module.init_params()
    module.forward(mx.io.DataBatch(data=[mx.nd.ones((3, 8, 7))], label=None))
    assert module.get_outputs()[0].shape == (3, 8, 7)
    module.backward([mx.nd.ones((3, 8, 7))])
    mx.nd.waitall()


def test_other_custom_operators_are_left_alone():
    class Twice(mx.operator.CustomOp):
        def forward(self, is_train, req, in_data, out_data, aux):
            self.assign(out_data[0], req[0], in_data[0] * 2)

    @mx.operator.register("graft_test_twice")
    class TwiceProp(mx.operator.CustomOpProp):
        def create_operator(self, ctx, shapes, dtypes):
            return Twice()

    assert (mx.nd.Custom(mx.nd.ones((2, 2)), op_type="graft_test_twice").asnumpy() == 2).all()
    symbol = mx.sym.Custom(mx.sym.var("x"), op_type="graft_test_twice", name="t")
    assert guard.MARK not in symbol.tojson()
    assert (evaluate(symbol, {"x": np.ones((2, 2), "float32")}, requests="null").outputs[0] == 2).all()


def use_parameters_in_turn() -> None:
    """Run a swapped net, and MXNet's own with the same parameters at once: that leaves these in other layouts."""
    net = gluon.nn.HybridSequential(prefix="turns_")
    with net.name_scope():
        same = {"kernel_size": 3, "padding": 1}
        net.add(gluon.nn.Conv2D(32, **same), gluon.nn.Conv2D(32, activation="relu", **same), gluon.nn.Dense(16))
    net.initialize(mx.init.Xavier())
    rng = np.random.default_rng(4)
    x, head = mx.nd.array(random(rng, 4, 8, 13, 11)), mx.nd.array(random(rng, 4, 16))
    net(x).wait_to_read()
    parameters = net.collect_params()
    native = gluon.SymbolBlock(net(mx.sym.var("data")), mx.sym.var("data"), params=parameters)
    expected = native(x).asnumpy()
    clgraft_ops.swap_block(net)

    def step(block, between) -> dict:
        with mx.autograd.record():
            y = block(x)
        between()
        y.backward(head)
        return {name: parameter.grad().asnumpy() for name, parameter in parameters.items()}

    gradients = step(native, mx.nd.waitall)
    for request, static in (("write", True), ("add", False), ("write", False)):
        parameters.setattr("grad_req", request)
        net.hybridize(static_alloc=static, static_shape=static)
        for _ in range(REPEATS):
            before, found = native(x), net(x)
            if request == "add":
                parameters.zero_grad()
                step(native, lambda: None)
            own = step(net, lambda: native(x))
            for got in (before, found):
                assert_close(got.asnumpy(), expected)
            for name, value in gradients.items():
                assert_close(own[name], value * (1 + (request == "add")), what=name)


FREED = """
import sys
sys.path[:0] = {path!r}
import clgraft.mxnet_ops
from tests.mxnet_ops import test_guard
case = test_guard.native_case()
for mode in test_guard.MODES:
    test_guard.test_written_by_hand_in_gluon(mode, case)
    for operator in ("Convolution", "BatchNorm", "Activation", "broadcast_add"):
        test_guard.test_swapped_in_part(mode, [operator], case)
test_guard.test_written_by_hand_in_a_symbol_block(case)
test_guard.test_written_by_hand_in_a_module(case)
test_guard.use_parameters_in_turn()
print("right")
"""


UNGUARDED = """
import sys
sys.path[:0] = {path!r}
from tests.mxnet_ops import test_guard
case = test_guard.native_case()
test_guard.mx.nd.Custom = test_guard.mx.nd.Custom.__wrapped__
test_guard.test_written_by_hand_in_gluon("plain", case)
print("right")
"""


BLOCKED = """
import sys
sys.path[:0] = {path!r}
from tests.mxnet_ops import test_guard
test_guard.guard.plain.make_plain = lambda arrays, gradients=False: None
test_guard.use_parameters_in_turn()
print("right")
"""


def run_poisoned(program: str) -> subprocess.CompletedProcess:
    # glibc fills what is freed, and keeps large blocks in its heap, so that a use after free cannot go unseen
    environment = {**os.environ, "MALLOC_PERTURB_": "165", "MALLOC_MMAP_THRESHOLD_": str(2**30)}
    command = [sys.executable, "-c", program.format(path=[str(ROOT)])]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


def test_where_freed_memory_is_overwritten_at_once():
    done = run_poisoned(FREED)
    assert done.returncode == 0 and "right" in done.stdout, done.stderr[-3000:]


@pytest.mark.parametrize("program", [UNGUARDED, BLOCKED], ids=["guards", "plain"])
def test_these_tests_notice_what_is_missing(program):
    done = run_poisoned(program)
    assert done.returncode != 0 and "right" not in done.stdout


def test_nothing_copies_parameters():
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Conv2D(4, 3, in_channels=2), gluon.nn.Dense(5, in_units=36))
    clgraft_ops.swap_block(net)
    net.initialize()
    net.hybridize()
    net(mx.nd.ones((1, 2, 5, 5)))
    symbol, places = guard._for_plain(net._cached_graph[1])
    names = symbol.list_inputs()
    assert sorted(names[place] for place in places) == sorted(name for name in names if not name.endswith("bias"))
    nodes = json.loads(symbol.tojson())["nodes"]
    guards = [node for node in nodes if guard.MARK in node.get("attrs", {}) and node["op"] != "null"]
    assert [nodes[node["inputs"][0][0]]["op"] for node in guards] == ["Custom"]  # that of the output


START = """
import clgraft.mxnet_ops as ops, mxnet as mx
x, w = mx.nd.ones((8, 64, 56, 56)), mx.nd.ones((64, 64, 3, 3))
keys = dict(op_type="ocl_conv", kernel=(3, 3), pad=(1, 1), num_filter=64, no_bias=True)
x.attach_grad()
"""
IN_FLIGHT = {
    "imperative": """
with mx.autograd.record():
    for _ in range(4):
        y = mx.nd.Custom(x, w, **keys)
y.backward()
""",
    "executor": """
executor = mx.sym.Custom(mx.sym.var("data"), name="c", **keys).simple_bind(mx.cpu(), data=x.shape)
executor.forward(is_train=True)
executor.backward(mx.nd.ones(x.shape))
""",
    "static": """
net = mx.gluon.nn.Conv2D(64, 3, padding=1, in_channels=64)
net.initialize()
ops.swap_block(net)
net.hybridize(static_alloc=True, static_shape=True)
with mx.autograd.record():
    y = net(x)
y.backward()
""",
}


@pytest.mark.parametrize("mode", IN_FLIGHT)
def test_a_process_leaves_cleanly_with_an_operator_in_flight(mode):
    done = subprocess.run([sys.executable, "-c", START + IN_FLIGHT[mode]], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_calls_leave_nothing_behind():
    def work() -> None:
        x = mx.nd.ones((2, 3))
        x.attach_grad()
        with mx.autograd.record():
            y = mx.nd.Custom(x, op_type="ocl_activation", act_type="tanh")
        y.backward()
        mx.nd.waitall()

    work()
    before = calls.lib.clg_mx_held()
    for _ in range(50):
        work()
    assert calls.lib.clg_mx_held() <= before + 2
