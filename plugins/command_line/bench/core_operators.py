"""Our side without an adapter: plans run on NumPy arrays or on arrays of the device, for peers without an adapter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from clgraft import core
from clgraft.core import PoolProblem, Problem
from clgraft.core.abi import lib
from clgraft.core.nn import activations, element_functions, elementwise
from clgraft.plugins.command_line.bench.cases import Case, Element, gradients_of
from clgraft.plugins.command_line.bench.peers import Side, aligned

EPS = 1e-5


def bind(problem: Problem, arrays: dict[str, Any], scalars: tuple[float, ...] = ()) -> Callable[[], None]:
    """Return a call of a problem's plan; arrays that are missing are made where the others are, and added."""
    plan = core.context().plan(problem)
    on_device = any(not isinstance(array, np.ndarray) for array in arrays.values())
    for argument in plan.arguments:
        if argument.name not in arrays:
            zeros = aligned(np.zeros(argument.shape, argument.dtype))
            arrays[argument.name] = to_device(zeros) if on_device else zeros
    bound = plan.bind([_buffer(arrays[a.name], a) for a in plan.arguments])  # once, as adapters do
    return lambda: plan.run_bound(bound, scalars)


def to_device(array: np.ndarray) -> Any:
    """Return a copy of an array in the device's memory."""
    import pyopencl.array as device_array

    return device_array.to_device(core.context().queue, array)


def _buffer(array: Any, argument: core.Argument) -> core.Buffer:
    if isinstance(array, np.ndarray):
        return core.Buffer(array.ctypes.data, argument.nbytes, argument.dtype)
    handle = array.base_data.int_ptr if argument.nbytes else 0
    return core.Buffer(handle, argument.nbytes, argument.dtype, kind=lib.CLG_DEVICE, offset=array.offset)


def side(case: Case, arrays: dict[str, np.ndarray], on_device: bool = False) -> Side:
    """Return our side.

    Parameters
    ----------
    case : Case
    arrays : dict of str to numpy.ndarray
        x (x0, x1), dy and the parameters by their names in the core.
    on_device : bool
        Copy the arrays to the device first: calls then move nothing, and wait for the device.
    """
    if not on_device:
        return _side(case, dict(arrays))
    found = _side(case, {name: to_device(array) for name, array in arrays.items()})
    finish = core.context().finish

    def waiting(call: Callable[[], object] | None) -> Callable[[], None] | None:
        def run() -> None:
            assert call is not None
            call()
            finish()

        return None if call is None else run

    forward = waiting(found.forward)
    assert forward is not None
    return Side(forward, waiting(found.backward), lambda: [array.get() for array in found.results()])


def _side(case: Case, arrays: dict[str, Any]) -> Side:
    work = case.work
    if isinstance(work, Element):
        return _element(work, arrays)
    forward, calls = bind(work, arrays, tuple(work.trial_scalars().values())), []
    if isinstance(work, PoolProblem) and work.keeps_argmax:
        bind(work.with_direction("forward_argmax"), arrays)()
    gradients = gradients_of(work)
    for gradient in gradients:
        renamed = {name: arrays[symbol] for name, symbol in gradient.arguments.items() if symbol in arrays}
        usual = work.trial_scalars()
        scalars = tuple(usual[value] if isinstance(value, str) else value for value in gradient.scalars.values())
        calls.append(bind(gradient.problem, renamed, scalars))
        arrays.update((symbol, renamed[name]) for name, symbol in gradient.arguments.items())

    def backward() -> None:
        for call in calls:
            call()

    written = [symbol for gradient in gradients for symbol in gradient.writes if not symbol.startswith("_")]
    results = [next(a.name for a in work.arguments() if a.role == "out"), *written]
    return Side(forward, backward, lambda: [arrays[name] for name in results])


def _element(work: Element, arrays: dict[str, Any]) -> Side:
    if work.function == "sum":
        forward = bind(elementwise.sum_forward(work.shape, 2), arrays)
        return Side(forward, None, lambda: [arrays["y0"]])
    there = {"x0": arrays["x"]}
    forward = bind(activations.forward(work.function, work.shape), there)
    reads = {"x": arrays["x"], "y": there["y0"]}
    back = {"x0": arrays["dy"]}
    for i, name in enumerate(element_functions.ACTIVATIONS[work.function].reads):
        back[f"x{i + 1}"] = reads[name]
    backward = bind(activations.backward(work.function, work.shape), back)
    return Side(forward, backward, lambda: [there["y0"], back["y0"]])
