"""Checks of the core's operators against their float64 references in NumPy; needs no framework."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import fields, replace

import numpy as np

from clgraft import core
from clgraft.core import Problem, ProblemError
from clgraft.core.problem import DTYPES, Argument, in_numpy, kinds
from clgraft.plugins.command_line.check.runner import CheckRow, relative_error

LIMITS = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 1e-4, "float64": 1e-11}
BUILT_ONCE = {
    "float32": None,
    "float16": 2,
    "bfloat16": 1,
    "float64": 2,
}  # examples of a kind that are checked in a dtype


def count(repeats: int = 3) -> int:
    """Return how many problems `rows` checks."""
    return sum(1 for dtype in _dtypes() for _ in examples(dtype))


def rows(repeats: int = 3) -> Iterator[CheckRow]:
    """Yield a row for every output of every operator's examples, in every dtype that the device computes."""
    context = core.context()
    for dtype in _dtypes():
        for problem in examples(dtype):
            yield from _check(context, problem, repeats)


def _dtypes() -> tuple[str, ...]:
    has = {"float64": core.context().device.has_fp64, "bfloat16": in_numpy("bfloat16")}
    return tuple(dtype for dtype in BUILT_ONCE if has.get(dtype, True))


def examples(dtype: str) -> Iterator[Problem]:
    """Yield the examples of all kinds of problems in all their directions, of some dtype.

    Kernels differ between dtypes in their loads and stores only, and each shape costs a build of its own: of the
    other types only the first examples are taken.
    """
    for kind, problems in sorted(kinds().items()):
        for text in problems.examples[: BUILT_ONCE[dtype]]:
            for direction in problems.directions or ("",):
                try:
                    problem = core.parse(" ".join(filter(None, (kind, direction, text))))
                except ProblemError:  # the example has no such direction
                    continue
                try:
                    own = not any(field.name == "dtype" for field in fields(problem))
                    problem = problem if own else replace(problem, dtype=dtype)
                except ProblemError:  # an example of mixed types
                    own = True
                if dtype == "float32" or not own:  # where its dtypes are others, the example names them
                    yield problem


def _check(context: core.Context, problem: Problem, repeats: int) -> Iterator[CheckRow]:
    plan = context.plan(problem)
    given = problem.sample(np.random.default_rng(7))
    outputs = {}
    for argument in problem.arguments():
        if argument.role != "in":
            outputs[argument.name] = given[argument.name].copy() if argument.name in given else _poisoned(argument)
    scalars = problem.trial_scalars()
    expected = problem.reference(given, scalars)
    arguments = {**given, **outputs}
    plan.run(scalars, **arguments)
    results = {name: value.copy() for name, value in outputs.items()}
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        plan.run(scalars, **arguments)
        times.append(time.perf_counter() - start)
    seconds: float | None = statistics.median(times) if times else None
    for name, result in results.items():
        limit = max(LIMITS[problem.dtype], LIMITS.get(result.dtype.name, 0.0))
        yield CheckRow(str(problem), name, relative_error(result, expected[name]), limit, seconds=seconds)
        seconds = None


def _poisoned(argument: Argument) -> np.ndarray:
    """Return an array for an output whose values no kernel is likely to write, so that elements left out are seen."""
    value = np.nan if argument.dtype in DTYPES else np.iinfo(argument.dtype).max
    return np.full(argument.shape, value, argument.dtype)
