"""Our side without an adapter: plans run on NumPy arrays, for peers into which nothing is grafted."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from clgraft import core
from clgraft.core import BatchNormProblem, ConvProblem, PoolProblem, Problem
from clgraft.core.operators.pointwise.formulas import activation, eltwise
from clgraft.plugins.command_line.bench.cases import Case, Element
from clgraft.plugins.command_line.bench.peers import Side

EPS = 1e-5


def bind(problem: Problem, arrays: dict[str, np.ndarray], scalars: tuple[float, ...] = ()) -> Callable[[], None]:
    """Give a call of a problem's plan; arrays that are missing are made and added."""
    plan = core.context().plan(problem)
    for argument in plan.arguments:
        if argument.name not in arrays:
            arrays[argument.name] = np.full(argument.shape, np.nan, np.float32)
    bound = [core.Buffer(arrays[a.name].ctypes.data, a.nbytes, a.dtype) for a in plan.arguments]
    return lambda: plan.execute(bound, scalars)


def side(case: Case, arrays: dict[str, np.ndarray]) -> Side:
    """Give our side; `arrays` holds x (x0, x1), dy and the parameters by their names in the core."""
    work = case.work
    if isinstance(work, Element):
        return _element(work, arrays)
    if isinstance(work, BatchNormProblem):
        forward = bind(work, arrays, (EPS,))
        other = BatchNormProblem("backward_training", work.batch, work.channels, work.pixels)
        return Side(forward, bind(other, arrays, (EPS,)), lambda: [arrays[n] for n in ("y", "dx", "dgamma", "dbeta")])
    if isinstance(work, PoolProblem):
        forward = bind(work, arrays)
        return Side(forward, bind(work.with_direction("backward"), arrays), lambda: [arrays["y"], arrays["dx"]])
    assert isinstance(work, ConvProblem)
    calls = [bind(work.with_direction(d), arrays) for d in ("backward_data", "backward_filter")]

    def backward() -> None:
        for call in calls:
            call()

    return Side(bind(work, arrays), backward, lambda: [arrays[n] for n in ("y", "dx", "dw")])


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
