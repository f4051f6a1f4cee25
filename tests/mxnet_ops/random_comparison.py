"""Compares random models with their swapped twins: what binds and runs in MXNet does so swapped, with equal results.

python -m tests.mxnet_ops.random_comparison 0 1000     # the seeds from 0 to 999, each failure in one line
"""

from __future__ import annotations

import sys
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import clgraft.mxnet_ops as ops  # isort: skip  (before MXNet)

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

from tests.mxnet_ops.random_symbols import CONTEXTS, Model, make

# of the largest value; sums in half precision are MXNet's, in half precision
TOLERANCE = {"float16": 3e-2, "float32": 1e-4, "float64": 1e-4}
ROUNDING = {"float16": 1e-3, "float32": 3e-7, "float64": 3e-7}
AMPLIFIED = 20  # times what rounding the inputs changes
LEAST = 0.1  # of the largest output: what differences of larger values leave is not held to more
START = 3.0  # what a gradient that is added to holds before
OPTIONS = ({}, {"fuse": True}, {"regions": True})
Found = dict  # of names to numpy arrays


class NotNative(Exception):
    """MXNet itself does not bind or run a model."""


class Differs(AssertionError):
    """A swapped model does not do what MXNet's does."""


def known_shapes(model: Model, seed: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes that the binding is given: of the data alone where MXNet finds the others from them."""
    names = [*model.data, *(n for n in model.arguments if n in model.whole)]
    given = {n: model.shapes[n] for n in (names if seed % 3 else model.arguments)}
    if seed % 5 == 0 and len(given) > 1:
        given.pop(sorted(given)[seed % len(given)])
    try:
        found = model.symbol.infer_shape(**given)
    except Exception:
        found = (None, None, None)
    expected = [model.shapes[n] for n in model.arguments]
    if found[0] is None or [tuple(s) for s in found[0]] != expected:
        return {n: model.shapes[n] for n in model.arguments}
    return given


def run_executor(
    symbol: Any, model: Model, arrays: Found, shapes: dict[str, Any], seed: int, adds: bool = True
) -> Found:
    """Bind by shapes, run forward and backward, and return outputs, gradients and auxiliary states.

    Without `adds` gradients that are requested to be added are written, and the sum is made here: some of MXNet's
    operators take one request for the other.
    """
    requests = {n: "write" if r == "add" and not adds else r for n, r in model.requests.items()}
    dtypes = {n: np.dtype(model.dtypes[n]) for n in model.arguments}
    executor = symbol.simple_bind(
        mx.cpu(), grad_req=requests, type_dict=dtypes, group2ctx=CONTEXTS if seed % 2 else None, **shapes
    )
    for name, array in {**executor.arg_dict, **executor.aux_dict}.items():
        array[:] = mx.nd.array(arrays[name], dtype=arrays[name].dtype)
    for name, array in executor.grad_dict.items():
        if array is not None:
            array[:] = START if requests[name] == "add" else np.nan
    outputs = executor.forward(is_train=model.train)
    found = {f"output {i}": output.asnumpy() for i, output in enumerate(outputs)}
    if any(request != "null" for request in model.requests.values()):
        heads = [mx.nd.array(h, dtype=h.dtype) for h in head_gradients(found.values(), seed)]
        executor.backward(heads, is_train=model.train)
    mx.nd.waitall()
    for name, array in executor.grad_dict.items():
        if array is not None:
            before = START if requests[name] != model.requests[name] else 0
            found[f"gradient of {name}"] = (array.asnumpy() + before).astype(array.dtype)
    found.update({n: a.asnumpy() for n, a in executor.aux_dict.items()})
    return found


def head_gradients(outputs: Any, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed + 1)
    return [np.asarray(rng.standard_normal(output.shape)).astype(output.dtype) for output in outputs]


def block_of(model: Model, arrays: Found, adds: bool = True) -> gluon.SymbolBlock:
    """Return a symbol as a Gluon net that holds the arrays which are not data."""
    net = gluon.SymbolBlock(model.symbol, [mx.sym.var(name) for name in model.data])
    for name, parameter in net.collect_params().items():
        parameter.dtype, parameter.shape = arrays[name].dtype, arrays[name].shape
        if parameter.grad_req != "null" and name in model.requests:
            request = model.requests[name]
            parameter.grad_req = "write" if request == "add" and not adds else request
        parameter.initialize(mx.init.Constant(0.5), ctx=mx.cpu())
        parameter.set_data(mx.nd.array(arrays[name], dtype=arrays[name].dtype))
    return net


def run_block(net: Any, model: Model, arrays: Found, seed: int) -> Found:
    """Run a net forward and backward, and return what `run_executor` returns."""
    inputs = [mx.nd.array(arrays[name], dtype=arrays[name].dtype) for name in model.data]
    parameters = net.collect_params()
    for name, array in zip(model.data, inputs):
        if model.requests[name] != "null":
            array.attach_grad()
            array.grad[:] = np.nan
    for parameter in parameters.values():
        if parameter.grad_req != "null":
            parameter.grad()[:] = START if parameter.grad_req == "add" else np.nan
    with autograd.record(train_mode=model.train):
        outputs = net(*inputs)
    outputs = [outputs] if isinstance(outputs, mx.nd.NDArray) else list(outputs)
    found = {f"output {i}": output.asnumpy() for i, output in enumerate(outputs)}
    if any(request != "null" for request in model.requests.values()):
        heads = [mx.nd.array(h, dtype=h.dtype) for h in head_gradients(found.values(), seed)]
        autograd.backward(outputs, heads, train_mode=model.train)
    mx.nd.waitall()
    found.update({f"gradient of {n}": a.grad.asnumpy() for n, a in zip(model.data, inputs) if a.grad is not None})
    for name, parameter in parameters.items():
        if parameter.grad_req != "null":
            before = START if parameter.grad_req != model.requests[name] else 0
            found[f"gradient of {name}"] = (parameter.grad().asnumpy() + before).astype(parameter.dtype)
        elif name in model.auxiliary:
            found[name] = parameter.data().asnumpy()
    return found


def perturbed(arrays: Found, model: Model, seed: int) -> Found:
    """Return the arrays with their rounding changed."""
    rng, found = np.random.default_rng(seed + 2), {}
    for name, array in arrays.items():
        fixed = array.dtype.kind != "f" or name in model.whole or name in model.ones
        noise = 0 if fixed else ROUNDING[coarsest(model)] * rng.choice([-1.0, 1.0], array.shape)
        found[name] = array if fixed else (array * (1 + noise)).astype(array.dtype)
    return found


def coarsest(model: Model) -> str:
    """Return the least precise dtype of a model."""
    text = model.symbol.tojson()
    if "float16" in (*model.dtypes.values(),) or "float16" in text:
        return "float16"
    return "float32"


def largest(values: np.ndarray) -> float:
    """Return the largest finite absolute value."""
    values = np.abs(values.astype("float64"))
    return float(values[np.isfinite(values)].max(initial=0))


def check(what: str, got: Found, expected: Found, nearby: Found, added: Found, model: Model) -> None:
    """Compare results: with MXNet's (`expected`, or `added` where it adds gradients itself) and what rounding changes.

    Raises
    ------
    Differs
        If a result differs by more than rounding explains.
    NotNative
        If MXNet's own depends on rounding alone.
    """
    tolerance = TOLERANCE[coarsest(model)]
    least = LEAST * max((largest(value) for name, value in expected.items() if name.startswith("output")), default=0)
    for name, right in expected.items():
        one, other = right.astype("float64"), nearby[name].astype("float64")
        if name.startswith("gradient") and np.isnan(one).all() and one.size:
            continue  # MXNet did not write it
        there = got[name].astype("float64")
        if there.shape != one.shape or got[name].dtype != right.dtype:
            raise Differs(f"{what}: {name} is {got[name].dtype} {there.shape}, expected {right.dtype} {one.shape}")
        finite = np.isfinite(one)
        if not one.size or not finite.any():
            continue
        if not (np.isfinite(other) == finite).all():
            raise NotNative(f"{name} depends on rounding")
        scale = max(largest(one), least, 1e-6)
        change = float(np.abs(other - one)[finite].max()) / scale
        if change > 0.01:
            raise NotNative(f"{name} depends on rounding")
        if not (np.isfinite(there) == finite).all():
            raise Differs(f"{what}: {name} is not finite where it is in MXNet, or the other way round")
        error = min(float(np.abs(there - two)[finite].max()) / scale for two in (one, added[name].astype("float64")))
        if error > tolerance + AMPLIFIED * change:
            raise Differs(f"{what}: {name} differs by {error:.1e} of the largest value, rounding by {change:.1e}")


def expect_same_face(swapped: Any, native: Any, what: str) -> None:
    """Demand that two symbols look the same from outside."""
    for names in ("list_arguments", "list_auxiliary_states", "list_outputs"):
        if getattr(swapped, names)() != getattr(native, names)():
            raise Differs(f"{what}: {names} are {getattr(swapped, names)()}, expected {getattr(native, names)()}")
    layouts = [[s[i].attr("__layout__") for i in range(len(s.list_outputs()))] for s in (swapped, native)]
    if layouts[0] != layouts[1]:
        raise Differs(f"{what}: layouts of outputs are {layouts[0]}, expected {layouts[1]}")


def native_run(run: Callable[[Found, bool], Found], arrays: Found, model: Model, seed: int) -> tuple[Found, ...]:
    """Return MXNet's results: its own with gradients added here and by itself, and of inputs rounded otherwise."""
    try:
        return run(arrays, False), run(perturbed(arrays, model, seed), False), run(arrays, True)
    except Exception as error:
        lines = [line for line in str(error).splitlines() if "rror" in line and "rguments:" not in line]
        raise NotNative(lines[-1] if lines else repr(error)) from None


def attempt(what: str, call: Callable[[], Any]) -> Any:
    """Call what MXNet can do and the swapped model therefore has to do."""
    try:
        return call()
    except Differs:
        raise
    except Exception as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        shown = next((line for line in lines if "[ocl" in line or "[pointwise" in line), lines[0] if lines else "")
        raise Differs(f"{what}: {type(error).__name__}: {shown}") from error


def compare_symbol(seed: int, model: Model | None = None) -> int:
    """Compare a random symbol with its swapped twins, and return how many operators were replaced.

    Raises
    ------
    NotNative
        If MXNet does not bind or run it.
    Differs
    """
    model = model or make(seed)
    arrays, shapes = model.arrays(seed), known_shapes(model, seed)
    with mx.util.np_shape(model.numpy_shapes):

        def run(found: Found, adds: bool) -> Found:
            return run_executor(model.symbol, model, found, shapes, seed, adds)

        native, replaced = native_run(run, arrays, model, seed), 0
        for options in OPTIONS:
            what = f"swap_symbol({', '.join(f'{k}={v}' for k, v in options.items())})"
            swapped, report = attempt(what, lambda options=options: ops.swap_symbol(model.symbol, **options))
            if not all(row.reason for row in report.kept):
                raise Differs(f"{what}: no reason for {[row for row in report.kept if not row.reason]}")
            expect_same_face(swapped, model.symbol, what)
            replaced = max(replaced, len(report.replaced))
            got = attempt(what, lambda swapped=swapped: run_executor(swapped, model, arrays, shapes, seed))
            check(what, got, *native, model)
    return replaced


def compare_block(seed: int, model: Model | None = None) -> int:
    """Do the same with the symbol as a Gluon net."""
    model = model or make(seed)
    arrays, replaced = model.arrays(seed), 0
    with mx.util.np_shape(model.numpy_shapes):

        def run(found: Found, adds: bool) -> Found:
            return run_block(block_of(model, found, adds), model, found, seed)

        native = native_run(run, arrays, model, seed)
        for regions in (False, True):
            what = f"swap_block(regions={regions})"
            net = block_of(model, arrays)
            report = attempt(what, lambda net=net, regions=regions: ops.swap_block(net, regions=regions))
            replaced = max(replaced, len(report.replaced))
            got = attempt(what, lambda net=net: run_block(net, model, arrays, seed))
            check(what, got, *native, model)
    return replaced


def main() -> None:
    """Compare the models of a range of seeds."""
    warnings.simplefilter("ignore")
    first, last = int(sys.argv[1]), int(sys.argv[2])
    counts = {"same": 0, "not native": 0, "differs": 0, "replaced": 0}
    for seed in range(first, last):
        print(f"seed {seed}", file=sys.stderr, flush=True)
        model = make(seed)
        for compare in (compare_symbol, compare_block):
            try:
                counts["replaced"] += compare(seed, model)
                counts["same"] += 1
            except NotNative as reason:
                counts["not native"] += 1
                if "-v" in sys.argv:
                    print(f"{seed} {compare.__name__} not native: {reason}")
            except Differs as error:
                counts["differs"] += 1
                print(f"{seed} {compare.__name__} {error}", flush=True)
                if "-v" in sys.argv:
                    traceback.print_exc()
    print(counts)


if __name__ == "__main__":
    main()
