"""Our side without an adapter: plans run on NumPy arrays, for peers into which nothing is grafted."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from clgraft import core
from clgraft.core import Problem
from clgraft.core.operators.pointwise.formulas import activation, eltwise
from clgraft.plugins.command_line.bench.cases import Case, Element
from clgraft.plugins.command_line.bench.peers import Side

EPS = 1e-5


def bind(problem: Problem, arrays: dict[str, np.ndarray], scalars: tuple[float, ...] = ()) -> Callable[[], None]:
    """Return a call of a problem's plan; arrays that are missing are made and added."""
    plan = core.context().plan(problem)
    for argument in plan.arguments:
        if argument.name not in arrays:
            arrays[argument.name] = np.zeros(argument.shape, argument.dtype)
    bound = [core.Buffer(arrays[a.name].ctypes.data, a.nbytes, a.dtype) for a in plan.arguments]
    return lambda: plan.execute(bound, scalars)


def side(case: Case, arrays: dict[str, np.ndarray]) -> Side:
    """Return our side; `arrays` holds x (x0, x1), dy and the parameters by their names in the core."""
    work = case.work
    if isinstance(work, Element):
        return _element(work, arrays)
    arrays = dict(arrays)
    forward, calls = bind(work, arrays, tuple(work.trial_scalars().values())), []
    for gradient in work.gradients():
        renamed = {name: arrays[symbol] for name, symbol in gradient.arguments.items() if symbol in arrays}
        usual = work.trial_scalars()
        scalars = tuple(usual[value] if isinstance(value, str) else value for value in gradient.scalars.values())
        calls.append(bind(gradient.problem, renamed, scalars))
        arrays.update((symbol, renamed[name]) for name, symbol in gradient.arguments.items())

    def backward() -> None:
        for call in calls:
            call()

    written = [symbol for gradient in work.gradients() for symbol in gradient.writes if not symbol.startswith("_")]
    results = [next(a.name for a in work.arguments() if a.role == "out"), *written]
    return Side(forward, backward, lambda: [arrays[name] for name in results])


def _element(work: Element, arrays: dict[str, np.ndarray]) -> Side:
    if work.function == "sum":
        forward = bind(eltwise.sum_forward(work.shape, 2), arrays)
        return Side(forward, None, lambda: [arrays["y0"]])
    there = {"x0": arrays["x"]}
    forward = bind(activation.forward(work.function, work.shape), there)
    reads = {"x": arrays["x"], "y": there["y0"]}
    back = {"x0": arrays["dy"]}
    for i, name in enumerate(activation.ACTIVATIONS[work.function].reads):
        back[f"x{i + 1}"] = reads[name]
    backward = bind(activation.backward(work.function, work.shape), back)
    return Side(forward, backward, lambda: [there["y0"], back["y0"]])
