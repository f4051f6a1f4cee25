"""Measure the cost of a call in addition to its kernel: `python benchmarks/adapter_overhead.py [--operators 50]`.

Chains of one operator on arrays of 64 numbers run in every installed framework. The rows are microseconds per operator,
forward, and forward with backward: a plan that is run by itself, clgraft's operator, the framework's operator, and an
empty operator in the framework's own interface for Python code. Each framework has a process of its own, and the faster
of its default number of threads and all processors.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION", "python")
os.environ.setdefault("GLOG_minloglevel", "2")

import numpy as np
from progress import say
from timing import compare, keep, restarted, row

from clgraft import core
from clgraft.core.nn import activations

SHAPE = (1, 1, 8, 8)
Calls = dict[str, Callable[[], Any]]


def kernels(count: int) -> Calls:
    """Return plans of relu that run without a framework."""
    forward = core.context().plan(activations.forward("relu", SHAPE))
    backward = core.context().plan(activations.backward("relu", SHAPE))
    x, y, dy, dx = (np.ones(SHAPE, np.float32) for _ in range(4))

    def bound(plan: core.Plan, *arrays: np.ndarray) -> list[core.Buffer]:
        return [core.Buffer(array.ctypes.data, array.nbytes, "float32") for array in arrays]

    there, back = bound(forward, x, y), bound(backward, dy, y, dx)

    def run(directions: int) -> None:
        for _ in range(count):
            forward.execute(there)
            if directions == 2:
                backward.execute(back)

    return {"plan alone, forward": lambda: run(1), "plan alone, both": lambda: run(2)}


def mxnet_chains(count: int) -> Calls:
    """Return chains in MXNet: imperative, in an executor, and in a static hybridized block."""
    import clgraft.mxnet_ops  # noqa: F401  isort: skip
    import mxnet as mx

    class Empty(mx.operator.CustomOp):
        def forward(self, is_train, req, in_data, out_data, aux):
            pass

        def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
            pass

    @mx.operator.register("benchmark_empty")
    class EmptyProp(mx.operator.CustomOpProp):
        def create_operator(self, ctx, shapes, dtypes):
            return Empty()

    kinds = {
        "ours": lambda F, x: F.Custom(x, op_type="ocl_activation", act_type="relu"),
        "MXNet's": lambda F, x: F.Activation(x, act_type="relu"),
        "empty Custom": lambda F, x: F.Custom(x, op_type="benchmark_empty"),
    }
    found: Calls = {}
    for name, operator in kinds.items():
        found.update(_mxnet_modes(mx, name, operator, count))
    return found


def _mxnet_modes(mx: Any, name: str, operator: Callable[[Any, Any], Any], count: int) -> Calls:
    def chain(F: Any, x: Any) -> Any:
        for _ in range(count):
            x = operator(F, x)
        return x

    class Block(mx.gluon.HybridBlock):
        def hybrid_forward(self, F: Any, x: Any) -> Any:
            return chain(F, x)

    data, head = mx.nd.ones(SHAPE), mx.nd.ones(SHAPE)
    data.attach_grad()
    block = Block()
    block.hybridize(static_alloc=True, static_shape=True)
    executor = chain(mx.sym, mx.sym.var("data")).simple_bind(mx.cpu(), data=SHAPE)

    def imperative(call: Callable[[], Any], backward: bool) -> None:
        if backward:
            with mx.autograd.record():
                y = call()
            y.backward(head)
        else:
            call()
        mx.nd.waitall()

    def bound(backward: bool) -> None:
        executor.forward(is_train=backward)
        if backward:
            executor.backward(head)
        mx.nd.waitall()

    modes: Calls = {}
    for backward in (False, True):
        what = "both" if backward else "forward"
        modes[f"MXNet executor, {name}, {what}"] = lambda b=backward: bound(b)
        modes[f"MXNet static block, {name}, {what}"] = lambda b=backward: imperative(lambda: block(data), b)
        modes[f"MXNet imperative, {name}, {what}"] = lambda b=backward: imperative(lambda: chain(mx.nd, data), b)
    return modes


def caffe_chains(count: int) -> Calls:
    """Return nets of ReLU layers, and of empty Python layers."""
    import tempfile

    import caffe

    import clgraft.caffe_layers  # noqa: F401

    class Empty(caffe.Layer):
        def setup(self, bottom, top):
            pass

        def reshape(self, bottom, top):
            top[0].reshape(*bottom[0].data.shape)

        def forward(self, bottom, top):
            pass

        def backward(self, top, propagate_down, bottom):
            pass

    sys.modules["benchmark_empty"] = type(sys)("benchmark_empty")
    sys.modules["benchmark_empty"].Empty = Empty  # type: ignore[attr-defined]
    python = 'type: "Python" python_param {{ module: "{}" layer: "{}" }}'
    kinds = {
        "ours": python.format("clgraft.caffe_layers", "OclReLU"),
        "Caffe's": 'type: "ReLU"',
        "empty Python layer": python.format("benchmark_empty", "Empty"),
    }
    found: Calls = {}
    for name, kind in kinds.items():
        sizes = " ".join(f"dim: {size}" for size in SHAPE)
        text = (
            f'force_backward: true layer {{ name: "b0" type: "Input" top: "b0" input_param {{ shape {{ {sizes} }} }} }}'
        )
        for i in range(count):
            text += f'\nlayer {{ name: "b{i + 1}" bottom: "b{i}" top: "b{i + 1}" {kind} }}'
        with tempfile.NamedTemporaryFile("w", suffix=".prototxt") as file:
            file.write(text)
            file.flush()
            net = caffe.Net(file.name, caffe.TRAIN)

        def both(net: Any = net) -> None:
            net._forward(0, len(net.layers) - 1)
            net._backward(len(net.layers) - 1, 0)

        found[f"Caffe, {name}, forward"] = lambda net=net: net._forward(0, len(net.layers) - 1)
        found[f"Caffe, {name}, both"] = both
    return found


CHAINS = {"mxnet": mxnet_chains, "caffe": caffe_chains}


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operators", type=int, default=50, help="in a chain")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each row")
    parser.add_argument("--only", default="", help="part of a row's name")
    parser.add_argument("--json", default="", metavar="FILE", help="keep the figures, in FILE-FRAMEWORK")
    parser.add_argument("--framework", choices=tuple(CHAINS), help="default: each in a process of its own")
    options = parser.parse_args()
    if options.framework is None:
        here = [name for name in CHAINS if importlib.util.find_spec(name)]
        for name in here:
            subprocess.run([sys.executable, *sys.argv, f"--framework={name}"], check=True)
        return 0 if here else 1
    threads = restarted(options.framework)
    print(f"{options.framework}: {threads}")
    calls = {**kernels(options.operators), **CHAINS[options.framework](options.operators)}
    chosen = {name: call for name, call in calls.items() if options.only in name or name.startswith("plan alone")}
    print(f"device: {core.context().device.name}; microseconds per operator")
    say(f"{len(chosen)} rows in turns for {options.seconds * len(chosen):g} s")
    times = compare(chosen, options.seconds * len(chosen))
    for name, timing in times.items():
        print(f"{name:50} {timing.median * 1e6 / options.operators:8.1f}")
    if options.json:
        path = Path(options.json)
        rows = [row("calls", name, "", "", 0.0, each.median / options.operators) for name, each in times.items()]
        own = {options.framework: options.framework}, {options.framework: threads}
        keep(str(path.with_name(f"{path.stem}-{options.framework}{path.suffix}")), core.context(), rows, *own)
    return 0


if __name__ == "__main__":
    sys.exit(main())
