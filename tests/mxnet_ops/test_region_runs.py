"""How regions run: Python is asked once, and what is on the device or in memory already is used again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading

import mxnet as mx
import numpy as np
import pytest

import clgraft.mxnet_ops as ops
from clgraft import core
from clgraft.core.runtime.plan import OVERWRITE
from clgraft.mxnet_ops.engine import registration
from clgraft.mxnet_ops.engine.operator import find_operator
from clgraft.mxnet_ops.regions import execution
from tests.mxnet_ops.operator_checks import random

sym = mx.sym


def net(hidden: int = 6) -> mx.sym.Symbol:
    first = sym.FullyConnected(sym.var("data"), num_hidden=hidden, name="first")
    return sym.FullyConnected(sym.Activation(first, act_type="tanh", name="tanh"), num_hidden=5, name="second")


def executors(rng, count: int = 1, **data):
    """Return executors of the net, operator by operator and with regions, on equal arrays."""
    found = []
    for regions in (False, *(True,) * count):
        swapped, report = ops.swap_symbol(net(), regions=regions)
        assert bool(report.regions) == regions
        found.append(swapped.simple_bind(mx.cpu(), **data))
    for name, array in found[0].arg_dict.items():
        values = random(rng, *array.shape)
        for each in found:
            each.arg_dict[name][:] = values
    return found


def step(executor, head) -> dict[str, np.ndarray]:
    y = executor.forward(is_train=True)[0].asnumpy()
    executor.backward(mx.nd.array(head))
    return {"output": y, **{name: array.asnumpy() for name, array in executor.grad_dict.items()}}


def compare(executors, head) -> None:
    expected, *others = [step(each, head) for each in executors]
    for found in others:
        for name in expected:
            np.testing.assert_allclose(found[name], expected[name], rtol=1e-5, atol=1e-6, err_msg=name)


def test_python_is_asked_once(rng, monkeypatch):
    bound, head = executors(rng, data=(3, 4)), random(rng, 3, 5)
    compare(bound, head)

    def never(*arguments):
        raise AssertionError("asked again")

    for name in ("make", "keep", "draw"):
        monkeypatch.setattr(execution.Execution, name, never)
    for _ in range(3):
        compare(bound, head)


def test_a_second_operator_uses_the_passes_of_the_first(rng, monkeypatch):
    one, first, second = executors(rng, count=2, data=(2, 4))
    head = random(rng, 2, 5)
    compare((one, first), head)
    monkeypatch.setattr(execution.RegionProgram, "make", lambda *arguments: 1 / 0)
    compare((one, second), head)


def test_a_backward_sends_only_what_its_forward_did_not(staged, rng):
    one, region = executors(rng, data=(3, 4))
    head = random(rng, 3, 5)
    compare((one, region), head)

    def sent(action) -> int:
        mx.nd.waitall()
        before = staged.counters()["bytes_to_device"]
        action()
        mx.nd.waitall()
        return staged.counters()["bytes_to_device"] - before

    gradient = mx.nd.array(head)
    inputs = sum(array.size for array in region.arg_dict.values()) * 4
    assert sent(lambda: region.forward(is_train=True)) == inputs
    assert sent(lambda: region.backward(gradient)) == head.size * 4
    assert sent(lambda: region.backward(gradient)) == head.size * 4  # a backward may be repeated
    for each in (one, region):  # the next forward sends what has changed
        each.arg_dict["first_weight"][:] = 0.25
    compare((one, region), head)


def test_an_operator_may_end_while_a_pass_is_made(rng, monkeypatch):
    """A garbage collection ends operators wherever Python code runs."""
    swapped, _ = ops.swap_symbol(net(hidden=7), regions=True)
    attributes = next(n["attrs"] for n in json.loads(swapped.tojson())["nodes"] if n["op"] == "Custom")
    region = find_operator("ocl_region", {"graph": attributes["graph"]})
    shapes = tuple(region.infer([(2, 4)] + [None] * (len(region.names) - 1))[0])
    ending, running = (execution.start(core.context(), region, shapes, "float32") for _ in range(2))
    ending.keep()
    original = execution.RegionPass.bind

    def bind(*arguments):
        ending.close()
        return original(*arguments)

    monkeypatch.setattr(execution.RegionPass, "bind", bind)
    thread = threading.Thread(target=running.make, args=(1, (OVERWRITE,)), daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive() and running.region.passes


@pytest.mark.parametrize("train", [False, True])
def test_an_output_that_is_an_input(rng, train):
    """MXNet may let an operator write over an array that it reads."""
    swapped, report = ops.swap_symbol(sym.tanh(sym.sigmoid(sym.var("x", dtype="float32"))), regions=True)
    assert report.regions
    text = next(n["attrs"]["graph"] for n in json.loads(swapped.tojson())["nodes"] if n["op"] == "Custom")
    values = random(rng, 4, 5)
    x = mx.nd.array(values)
    with mx.autograd.train_mode() if train else mx.autograd.predict_mode():
        mx.nd.Custom(x, op_type="ocl_region", graph=text, out=x)
    np.testing.assert_allclose(x.asnumpy(), np.tanh(1 / (1 + np.exp(-values))), rtol=1e-5, atol=1e-6)


WITHOUT_ONEDNN = """
import clgraft.mxnet_ops as ops
import mxnet as mx, numpy as np
from mxnet.gluon import nn

mx.random.seed(1)
net = nn.HybridSequential(prefix="net_")
net.add(nn.Conv2D(4, 3), nn.BatchNorm(), nn.Activation("relu"), nn.Dense(3))
net.initialize(mx.init.Xavier())
x = mx.nd.array(np.random.default_rng(0).standard_normal((2, 3, 8, 8)))
head = mx.nd.array(np.random.default_rng(1).standard_normal((2, 3)))
found = []
for swapped in (False, True):
    if swapped:
        report = ops.swap_block(net)
        assert not report.guards and report.regions, report
    for hybrid in (False, True):
        net.hybridize(hybrid)
        with mx.autograd.record():
            y = net(x)
        y.backward(head)
        trained = [parameter for parameter in net.collect_params().values() if parameter.grad_req != "null"]
        found.append([y.asnumpy(), *(parameter.grad().asnumpy() for parameter in trained)])
for other in found[1:]:
    for a, b in zip(found[0], other):
        np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-5)
"""


def test_without_onednn_nothing_is_guarded():
    environment = {**os.environ, "MXNET_MKLDNN_ENABLED": "0"}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_ONEDNN], env=environment, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr[-3000:]


def given(program):
    """Return how many sets of arrays a program keeps of those that are given back."""
    kept = list(program._free)
    for _ in range(20):
        program.give_back({})
    count = len(program._free)
    program._free = type(program._free)(kept)
    return count


def test_few_programs_keep_memory(monkeypatch, rng):
    """Many shapes, one after another: arrays that wait for the next operator do not pile up."""
    monkeypatch.setattr(execution, "LONG", 3)  # operators, as the net has
    monkeypatch.setattr(execution, "_recent", execution._Recent())
    execution._program.cache_clear()
    programs = []
    for batch in range(2, 4 + execution.MOST_RECENT):
        (_, region) = executors(rng, data=(batch, 4))
        step(region, random(rng, batch, 5))
        del region
        mx.nd.waitall()
        programs += [program for program in execution._recent._programs if program not in programs]
        assert programs[-1].operators == execution.LONG and given(programs[-1]) == execution.MOST_FREE
    assert len(programs) == 2 + execution.MOST_RECENT and len(registration._executions) < len(programs)
    assert sum(bool(program._free) for program in programs) <= execution.MOST_RECENT


def test_more_short_programs_keep_memory(monkeypatch, rng):
    """Each of a net's chains is at work at the same time, and several of them are equal."""
    monkeypatch.setattr(execution, "_recent", execution._Recent())
    execution._program.cache_clear()
    monkeypatch.setattr(execution, "LONG", 6)
    parts = 3
    most = execution.MOST_RECENT * execution.LONG // parts
    for batch in range(2, 4 + most):
        (_, region) = executors(rng, data=(batch, 4))
        step(region, random(rng, batch, 5))
        del region
        mx.nd.waitall()
        recent = execution._recent._programs
        assert len(recent) == min(batch - 1, most) and execution._recent._operators == parts * len(recent)
    assert given(next(iter(recent))) == execution.MOST_FREE * execution.LONG // parts
