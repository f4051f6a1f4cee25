"""Runs of a problem's plan on random numbers, for measurements without a framework."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from clgraft import core
from clgraft.core import Problem

first: list[float] = []  # when the first problem of this process was bound, in seconds of the monotonic clock


def bind(problem: Problem) -> Callable[[], None]:
    """Return a function that runs a problem once."""
    if not first:
        first.append(time.monotonic())
    plan = core.context().plan(problem)
    arrays = problem.sample(np.random.default_rng(5))
    for argument in plan.arguments:
        arrays.setdefault(argument.name, np.zeros(argument.shape, argument.dtype))
    bound = plan.bind([core.Buffer(arrays[a.name].ctypes.data, a.nbytes, a.dtype) for a in plan.arguments])
    values = problem.trial_scalars()
    scalars = [values[name] for name in plan.scalars]

    def run() -> None:
        assert arrays  # the buffers are addresses: this keeps their memory
        plan.run_bound(bound, scalars)

    return run
