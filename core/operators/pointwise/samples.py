"""Which inputs make the values of a pointwise problem finite: roots and logarithms have none of negative numbers."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any, Optional

import numpy as np

from clgraft.core.operators.pointwise.reference import evaluate

Interval = Optional[tuple[float, float]]  # None: normal numbers

COUNT = 4096
WIDEST = 6.0  # normal numbers beyond it are 2 in 10^9
INTERVALS = ((0.5, 1.5), (0.1, 0.9))


def intervals(problem: Any) -> tuple[Interval, ...]:
    """Return for each input an interval of random numbers, or None for normal ones, so that all values are finite.

    As few inputs as possible have an interval; where none makes all values finite no input has.

    Parameters
    ----------
    problem : PointwiseProblem
    """
    count = len(problem.inputs)
    return _intervals(replace(problem, inputs=((COUNT,),) * count, reductions=(), alpha="", beta=""))


@lru_cache(maxsize=1024)
def _intervals(problem: Any) -> tuple[Interval, ...]:
    every: tuple[Interval, ...] = (None,) * len(problem.inputs)
    if _finite(problem, every):
        return every
    for interval in INTERVALS:
        chosen: tuple[Interval, ...] = (interval,) * len(every)
        if _finite(problem, chosen):
            for i in range(len(every)):
                fewer = (*chosen[:i], None, *chosen[i + 1 :])
                chosen = fewer if _finite(problem, fewer) else chosen
            return chosen
    return every


def _finite(problem: Any, chosen: tuple[Interval, ...]) -> bool:
    """Return whether the values are numbers of the problem's type for inputs of these intervals."""
    rng = np.random.default_rng(0)
    arrays = {f"x{i}": rng.uniform(*(own or (-WIDEST, WIDEST)), COUNT) for i, own in enumerate(chosen)}
    results = evaluate(problem, arrays, problem.trial_scalars())
    with np.errstate(all="ignore"):
        return all(np.isfinite(value.astype(problem.dtype)).all() for value in results.values())
