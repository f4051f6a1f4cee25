"""The largest rounding errors that sums of products may have."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from clgraft import core
from clgraft.core import Problem
from clgraft.core.session.context import Context

STORAGE = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8, "float64": 2.0**-53}
ARITHMETIC = {"float32": 2.0**-24, "float16": 2.0**-24, "bfloat16": 2.0**-24, "float64": 2.0**-53}


def hold_to_bound(
    what: str, result: np.ndarray, exact: np.ndarray, bound: np.ndarray, terms: int, dtype: str, stores: int = 1
) -> None:
    """Hold every element to Higham's bound of a sum of products, plus the rounding of what is stored.

    Parameters
    ----------
    exact, bound : numpy.ndarray
        The sum in float64, and the sum of its terms' magnitudes.
    terms : int
        How many products are summed at most.
    stores : int
        How often an element is stored until it is done: what is stored before the last time is no larger than `bound`.
    """
    summing = (terms + 2) * ARITHMETIC[dtype] * bound
    storing = 2 * STORAGE[dtype] * (np.abs(exact) + summing + (stores - 1) * bound)
    allowed = summing + storing + (2.0**-25 if dtype == "float16" else 0)
    error = np.abs(result.astype(np.float64) - exact)
    wrong = np.argwhere(~(error <= allowed))
    assert not len(wrong), f"{what}: {len(wrong)} of {error.size} elements wrong, first at {wrong[0]}"


def run_to_bound(
    context: Context,
    problem: Problem,
    arrays: Mapping[str, np.ndarray],
    algorithm: str | None = None,
    accumulate: np.random.Generator | None = None,
) -> np.ndarray:
    """Run a problem of one output into NaN, hold every element to `hold_to_bound`, and return the result.

    Parameters
    ----------
    arrays : mapping of str to numpy.ndarray
        The inputs, and maybe others.
    accumulate : numpy.random.Generator, optional
        Makes the numbers that the result is added to.
    """
    inputs = {a.name: arrays[a.name] for a in problem.arguments() if a.role == "in"}
    ((name, exact),) = problem.reference(inputs).items()
    (bound,) = problem.reference({key: np.abs(array) for key, array in inputs.items()}).values()
    result = np.full(exact.shape, np.nan, problem.dtype)
    if accumulate is not None:
        result[...] = base = accumulate.standard_normal(exact.shape).astype(problem.dtype)
        exact, bound = exact + base, bound + np.abs(base)
    context.plan(problem, algorithm=algorithm).run(
        **inputs, **{name: result if accumulate is None else core.accumulate(result)}
    )
    hold_to_bound(str(problem), result, exact, bound, problem.terms + 2, problem.dtype, 1 + problem.bias)
    return result
