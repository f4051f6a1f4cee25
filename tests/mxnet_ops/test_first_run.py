"""What a first run plans: only what it runs; and what is planned again once it was forgotten."""

from __future__ import annotations

import clgraft.mxnet_ops  # isort: skip  (before MXNet)
import gc
import subprocess
import sys

import mxnet as mx
import numpy as np

from clgraft import core

SIDE = 11  # a size that no other test has


def small_net() -> mx.gluon.nn.HybridSequential:
    net = mx.gluon.nn.HybridSequential()
    net.add(
        mx.gluon.nn.Conv2D(6, 3, padding=1),
        mx.gluon.nn.BatchNorm(),
        mx.gluon.nn.Activation("relu"),
        mx.gluon.nn.MaxPool2D(3, 2),
        mx.gluon.nn.Dense(4),
    )
    net.initialize()
    return net


def planned(before: set[core.Problem]) -> set[str]:
    """Return the kinds and directions of the problems that were planned since."""
    found = set(core.context().problems()) - before
    return {f"{problem.kind} {getattr(problem, 'direction', '')}".strip() for problem in found}


def test_inference_plans_no_gradient_and_a_first_backward_does(rng):
    net = small_net()
    image = mx.nd.array(rng.standard_normal((3, 5, SIDE, SIDE)), dtype="float32")
    expected = net(image).asnumpy()
    clgraft.mxnet_ops.swap_block(net)
    net.hybridize()
    before = set(core.context().problems())
    assert np.allclose(net(image).asnumpy(), expected, rtol=1e-4, atol=1e-5)
    kinds = planned(before)
    assert {"conv forward", "pool forward", "dense forward"} <= kinds
    assert not [kind for kind in kinds if "backward" in kind or "training" in kind]
    with mx.autograd.record():
        loss = net(image).sum()
    mx.nd.waitall()
    assert not [kind for kind in planned(before) if "backward" in kind]
    loss.backward()
    mx.nd.waitall()
    assert {"conv backward_filter", "pool backward_argmax", "dense backward_weight"} <= planned(before)


def test_a_forgotten_plan_is_made_again(rng):
    x = mx.nd.array(rng.standard_normal((3, 5, SIDE, SIDE)), dtype="float32")
    w = mx.nd.array(rng.standard_normal((4, 5, 3, 3)), dtype="float32")
    attributes = {"kernel": (3, 3), "num_filter": 4, "no_bias": True, "op_type": "ocl_conv"}
    first = mx.nd.Custom(x, w, **attributes).asnumpy()
    core.context()._plans.clear()
    gc.collect()
    again = mx.nd.Custom(x, w, **attributes).asnumpy()
    assert np.array_equal(first, again)
    expected = mx.nd.Convolution(x, w, kernel=(3, 3), num_filter=4, no_bias=True).asnumpy()
    assert np.allclose(again, expected, rtol=1e-4, atol=1e-4)


FORKS = """
import os
import subprocess
import clgraft.mxnet_ops
import mxnet as mx

for size in range(2, 12):
    y = mx.nd.Custom(mx.nd.ones((size, 3)), op_type="ocl_activation", act_type="tanh")  # planned on the engine's thread
    z = mx.nd.Custom(y, mx.nd.ones((4, 3)), num_hidden=4, no_bias=True, op_type="ocl_fully_connected")
    subprocess.run(["true"], check=True)
    child = os.fork()
    if not child:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert z.shape == (size, 4) and z.asnumpy().min() > 0
print("done")
"""


def test_a_fork_while_operators_run_for_the_first_time():
    """MXNet waits for its threads in front of a fork, and these need the lock of the Python that forks."""
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=300)
    assert done.stdout == "done\n", done.stderr


ENDS = """
import ctypes
import json
import os
import threading
import time
import clgraft.mxnet_ops as ops
import mxnet as mx
from clgraft.mxnet_ops.engine.calls import lib
from clgraft.mxnet_ops.regions import execution

begun, ended = threading.Event(), []
close = execution.Execution.close

def slowly(self):
    begun.set()
    time.sleep(0.3)  # needs Python's lock again afterwards
    close(self)
    ended.append(threading.current_thread() is threading.main_thread())

execution.Execution.close = slowly
swapped, _ = ops.swap_symbol(mx.sym.tanh(mx.sym.sigmoid(mx.sym.var("x", dtype="float32"))), regions=True)
text = next(n["attrs"]["graph"] for n in json.loads(swapped.tojson())["nodes"] if n["op"] == "Custom")
fork = ctypes.PyDLL(None).fork  # as Python 3.9's subprocess does it: with the lock, and without hooks

def run():
    begun.clear()
    return mx.nd.Custom(mx.nd.ones((4, 5)), op_type="ocl_region", graph=text)

def forked():
    child = fork()
    if not child:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0

for count in range(1, 4):  # while an operator ends
    run()
    assert begun.wait(60)
    forked()
    assert len(ended) == count
lib.clg_mx_hold_ends()  # an operator that ends between this library's handler and MXNet's
run()
mx.nd.waitall()
time.sleep(1)
assert len(ended) == 3
forked()
assert len(ended) == 4
print("done", ended)
"""


def test_a_fork_while_operators_end():
    """They let Python free what they hold, on the engine's threads."""
    done = subprocess.run([sys.executable, "-c", ENDS], capture_output=True, text=True, timeout=120)
    assert done.stdout.startswith("done"), done.stderr
