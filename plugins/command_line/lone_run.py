"""Runs of a problem's plan on random numbers, for measurements without a framework."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from clgraft import core
from clgraft.core import Problem

SCALARS = {"eps": 1e-5}  # the others are 0.5


def bind(problem: Problem) -> Callable[[], None]:
    """Return a function that runs a problem once; whole numbers are 0, which is a valid index anywhere."""
    plan = core.context().plan(problem)
    rng = np.random.default_rng(5)
    arrays = [_array(argument, rng) for argument in plan.arguments]
    bound = [core.Buffer(array.ctypes.data, array.nbytes, a.dtype) for array, a in zip(arrays, plan.arguments)]
    scalars = [SCALARS.get(name, 0.5) for name in plan.scalars]

    def run() -> None:
        assert len(arrays) == len(bound)  # the buffers are addresses: the closure keeps their memory
        plan.execute(bound, scalars)

    return run


def _array(argument: core.Argument, rng: np.random.Generator) -> np.ndarray:
    if argument.role == "out" or np.issubdtype(np.dtype(argument.dtype), np.integer):
        return np.zeros(argument.shape, argument.dtype)
    return np.abs(rng.standard_normal(argument.shape, np.float32)).astype(argument.dtype)
