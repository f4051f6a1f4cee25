"""What `test_avx2` runs where compilers were told to leave AVX-512 alone: `run_as_avx2.py SET EVERY`."""

from __future__ import annotations

import sys

import numpy as np

from clgraft import core
from clgraft.core.tuning import Choice, identity
from clgraft.core.tuning.trial import Trial
from tests.core.every_run import plans

LARGEST = 100_000  # elements


def main(name: str, every: int) -> None:
    """Hold every algorithm's results to float64, twice; all arithmetic is in vectors of eight lanes."""
    context = core.context()
    assert context.device.vector_width == 8 and "avx2" in identity.device_words(context.device), context.device
    trials: dict[core.Problem, Trial] = {}
    algorithms = set()
    for plan in plans([name], LARGEST, every):
        if plan.algorithm == "empty":
            continue
        problem = plan.problem
        trial = trials.setdefault(problem, trials.get(problem) or Trial(problem, context))
        runner = trial.runner(context.launches(problem, Choice(plan.algorithm)), plan.algorithm)
        first = {key: array.copy() for key, array in runner.results().items()}
        error = trial.error(first)
        assert error <= 1, f"{problem} by {plan.algorithm}: {error:.1f} times the error that is allowed"
        for key, array in runner.results().items():
            assert np.array_equal(array, first[key], equal_nan=True), f"{problem} by {plan.algorithm}: {key} differs"
        algorithms.add(plan.algorithm)
    print(len(trials), *sorted(algorithms))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
