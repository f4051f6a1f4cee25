"""MXNet's calls are answered in C: what was found out once is kept, and nothing else changes."""

from __future__ import annotations

import subprocess
import sys
import threading

import mxnet as mx
import numpy as np
import pytest

import clgraft.mxnet_ops  # noqa: F401
from clgraft.mxnet_ops.engine import arrays, registration
from clgraft.mxnet_ops.engine.calls import lib
from tests.mxnet_ops.operator_checks import random


def relu(x: mx.nd.NDArray, **more: object) -> mx.nd.NDArray:
    return mx.nd.Custom(x, op_type="ocl_activation", act_type="relu", **more)


def test_python_is_asked_once(monkeypatch):
    x = mx.nd.array(random(np.random.default_rng(0), 3, 5))
    x.attach_grad()

    def step() -> None:
        with mx.autograd.record():
            y = relu(x)
        y.backward()
        np.testing.assert_array_equal(y.asnumpy(), np.maximum(x.asnumpy(), 0))
        np.testing.assert_array_equal(x.grad.asnumpy(), (x.asnumpy() > 0).astype("float32"))

    step()

    def never(*arguments):
        raise AssertionError("asked again")

    monkeypatch.setattr(registration, "find_operator", never)
    kept = lib.clg_mx_kept()
    for _ in range(3):
        step()
    assert lib.clg_mx_kept() == kept
    monkeypatch.undo()
    relu(mx.nd.ones((2, 2))).wait_to_read()  # new shapes are no new call
    assert lib.clg_mx_kept() == kept


def test_attributes_that_never_repeat_do_not_pile_up():
    x = mx.nd.array([-1.0, 2.0])
    for i in range(4400):
        y = mx.nd.Custom(x, op_type="ocl_activation", act_type="leaky", slope=1 + i / 4096)
    np.testing.assert_allclose(y.asnumpy(), [-(1 + 4399 / 4096), 2])
    mx.nd.waitall()
    assert lib.clg_mx_kept() < 4200


@pytest.mark.parametrize("op_type", ["ocl_transpose", "ocl_activation", "ocl_batchnorm"])
def test_an_output_that_is_the_input(op_type):
    value = random(np.random.default_rng(1), 4, 4)
    x = mx.nd.array(value)
    if op_type == "ocl_activation":
        expected = np.maximum(value, 0)
        relu(x, out=x)
    elif op_type == "ocl_transpose":
        expected = value.T
        mx.nd.Custom(x, op_type=op_type, axes=(1, 0), out=x)
    else:
        vectors = [mx.nd.full((4,), number) for number in (2, 1, 0, 1)]
        expected = 2 * value / np.sqrt(1 + 1e-3) + 1
        mx.nd.Custom(x, *vectors, op_type=op_type, fix_gamma=False, out=x)
    np.testing.assert_allclose(x.asnumpy(), expected, rtol=1e-5)


def test_operators_of_many_inputs_and_unlike_outputs():
    values = [random(np.random.default_rng(i), 2, i + 1) for i in range(40)]
    y = mx.nd.Custom(*map(mx.nd.array, values), op_type="ocl_concat", num_args=40, dim=1)
    np.testing.assert_array_equal(y.asnumpy(), np.concatenate(values, 1))


def test_threads_call_at_once():
    wrong: list[object] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        try:
            for size in (1, 7, 33, 64, 7, 1) * 5:
                value = random(rng, size, seed + 1)
                x = mx.nd.array(value)
                x.attach_grad()
                with mx.autograd.record():
                    y = mx.nd.Custom(x, op_type="ocl_activation", act_type="leaky", slope=0.5)
                y.backward()
                np.testing.assert_array_equal(y.asnumpy(), np.where(value > 0, value, np.float32(0.5) * value))
                np.testing.assert_array_equal(x.grad.asnumpy(), np.where(value > 0, 1, 0.5).astype("float32"))
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong


PROGRAMS = {
    "a failure while it runs": """
import clgraft.mxnet_ops, mxnet as mx
from clgraft import core
relu = lambda x: mx.nd.Custom(x, op_type="ocl_activation", act_type="relu")
x = mx.nd.ones((3, 3))
relu(x).asnumpy()
context = core.context()
for problem in context.problems():
    context.lib.clg_plan_destroy(context.plan(problem)._handle)
try:
    relu(x).asnumpy()
except mx.base.MXNetError:
    assert relu(mx.nd.ones((2, 2))).asnumpy().sum() == 4
    print("goes on")
""",
    "a child by fork": """
import os, clgraft.mxnet_ops, mxnet as mx
from clgraft.core import ExecutionError
relu = lambda: mx.nd.Custom(mx.nd.ones((3, 3)), op_type="ocl_activation", act_type="relu")
relu().asnumpy()
for _ in range(20):
    relu()
child = os.fork()
if not child:
    try:
        relu()
    except ExecutionError as error:
        os._exit(7 if "fork()" in str(error) else 1)
    os._exit(2)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert relu().asnumpy().sum() == 9
print("goes on")
""",
    "another device": """
import os, clgraft.mxnet_ops, mxnet as mx
from clgraft import core
relu = lambda: mx.nd.Custom(mx.nd.ones((3, 3)), op_type="ocl_activation", act_type="relu").asnumpy()
relu()
os.environ["CLGRAFT_DEVICE"] = "none such"
try:
    relu()
except core.ClgraftError as error:
    assert "none such" in str(error)
    del os.environ["CLGRAFT_DEVICE"]
    relu()
    print("goes on")
""",
}
TOLD = {"a failure while it runs": "[runtime] got handle"}


@pytest.mark.parametrize("what", PROGRAMS)
def test_a_process_goes_on_after(what):
    done = subprocess.run([sys.executable, "-c", PROGRAMS[what]], capture_output=True, text=True, timeout=120)
    assert "goes on" in done.stdout, done.stderr[-3000:]
    assert TOLD.get(what, "") in done.stderr


def test_arrays_are_grouped_as_in_c():
    names = ("IN", "OUT", "IN_GRAD", "OUT_GRAD", "AUX", "STATE")
    assert tuple(getattr(lib, f"CLG_MX_{name}") for name in names) == tuple(arrays.GROUPS)
    assert [getattr(arrays, name) for name in names] == list(arrays.GROUPS)
