"""Every problem of the sets with every algorithm that serves it, on random data: for checks of the runs themselves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from clgraft import core
from clgraft.core.errors import ClgraftError
from clgraft.core.planning.implementation import implementations
from clgraft.core.problem import kinds
from tests.problem_sets import FOLDER, problem_lines

SETS = tuple(sorted(path.stem for path in FOLDER.glob("*.txt")))


def in_directions(text: str) -> Iterator[core.Problem]:
    """Yield the problems of a line, in all directions unless it names one itself."""
    kind, _, rest = text.partition(" ")
    directions = kinds()[kind].directions
    named = set(directions) & set(rest.split())
    for direction in ("",) if named or not directions else directions:
        try:
            yield core.parse(" ".join(filter(None, (kind, direction, rest))))
        except core.ProblemError:  # it has no such direction
            continue


def plans(sets: Sequence[str], largest: int, every: int = 1) -> Iterator[core.Plan]:
    """Yield plans, one for each algorithm that does not decline.

    Parameters
    ----------
    sets : sequence of str
        Of `SETS`.
    largest : int
        Number of elements of all arguments together, above which a problem is left out.
    every : int
        Take only every so many-th problem.
    """
    context = core.context()
    count = 0
    for name in sets:
        for text in problem_lines(name).values():
            for problem in in_directions(text):
                if problem.dtype == "float64" and not context.device.has_fp64:
                    continue
                if sum(argument.size for argument in problem.arguments()) > largest:
                    continue
                count += 1
                if count % every:
                    continue
                for implementation in implementations(problem):
                    try:
                        yield context.plan(problem, implementation.NAME)
                    except ClgraftError:  # it declines
                        continue


def arrays(plan: core.Plan, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Return random inputs, and outputs of NaN."""
    return {
        argument.name: (
            np.full(argument.shape, np.nan, argument.dtype)
            if argument.role == "out"
            else rng.standard_normal(argument.shape).astype(argument.dtype)
        )
        for argument in plan.arguments
    }


def run(plan: core.Plan, values: dict[str, np.ndarray]) -> None:
    """Run with all scalars a half."""
    plan.run(dict.fromkeys(plan.scalars, 0.5), **values)
