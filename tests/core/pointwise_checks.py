"""What the suites of generated kernels share: machines to plan for, and a run into NaN."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from unittest import mock

import numpy as np

from clgraft import core
from clgraft.core.operators.pointwise import generate
from clgraft.core.session.context import Context

MACHINES = ("this one", "a GPU", "narrow vectors, many cores", "64-bit indices")
ROUNDING = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8, "float64": 2.0**-53}


@cache
def _planner(machine: str) -> Context:
    context = Context.on(None)
    changes = {
        "a CPU": {"is_cpu": True, "is_gpu": False},
        "a GPU": {"is_cpu": False, "is_gpu": True, "compute_units": 1},
        "narrow vectors, many cores": {"vector_width": 4, "compute_units": 48},
        "vectors of 8": {"vector_width": 8},
        "vectors of 16": {"vector_width": 16},
    }
    context.device = replace(context.device, **changes.get(machine, {}))
    return context


@contextmanager
def planning_for(machine: str) -> Iterator[Context]:
    """Return a context that plans for some machine and runs on this one."""
    if machine == "this one":
        yield core.context()
    elif machine == "64-bit indices":
        with mock.patch.object(generate, "SMALL", 256), mock.patch.object(generate, "SPAN", 100):
            yield _planner(machine)
    else:
        yield _planner(machine)


def run(
    context: Context, problem: core.Problem, arrays: dict[str, np.ndarray], scalars: dict[str, float] | None = None
) -> dict[str, np.ndarray]:
    """Run a problem whose outputs start as NaN, unless they are given."""
    bound = dict(arrays)
    outputs = {}
    for argument in problem.arguments():
        if argument.role != "in":
            outputs[argument.name] = bound.setdefault(argument.name, np.full(argument.shape, np.nan, argument.dtype))
    context.plan(problem).run(scalars=scalars, **bound)
    return outputs
