"""How a budget of time is spent: first on the problems that take most of a model's time.

The time of a problem is estimated from its operations and bytes before anything is measured; only ratios matter.
"""

from __future__ import annotations

from collections.abc import Sequence

from clgraft.core.problem import parse

LEAST_SECONDS = 10.0  # a search that is worth its time: a few candidates are built and timed
OPERATIONS_PER_BYTE = 10.0  # the balance of processors and of GPUs, within a factor of three


def cost(text: str) -> float:
    """Return the estimated time of a problem, in operations."""
    problem = parse(text)
    return max(float(problem.operations), OPERATIONS_PER_BYTE * problem.nbytes, 1.0)


def ordered(problems: Sequence[str]) -> list[str]:
    """Return problems with the most expensive first."""
    return sorted(problems, key=cost, reverse=True)


def seconds(problems: Sequence[str], left: float, most: float) -> float:
    """Return how long to search the first of the problems that are to do.

    Parameters
    ----------
    problems : sequence of str
        In the order of `ordered`.
    left : float
        What is left of the budget.
    most : float
        The most seconds of one problem.
    """
    share = left * cost(problems[0]) / sum(map(cost, problems))
    return min(most, max(share, LEAST_SECONDS), left)


def forecast(problems: Sequence[str], budget: float, most: float) -> str:
    """Return what a budget is enough for, as a sentence."""
    waiting, left, count = ordered(problems), budget, 0
    costs = [cost(text) for text in waiting]
    while waiting and (left >= LEAST_SECONDS or not count):
        left -= seconds(waiting, left, most)
        waiting.pop(0)
        count += 1
    share = sum(costs[:count]) / sum(costs) if costs else 1.0
    if not waiting:
        return f"budget {budget:g} s: enough for every problem"
    return (
        f"budget {budget:g} s: enough for {count} of {len(problems)} problems, which take about {share:.0%} of the "
        f"time; all of them need at least {LEAST_SECONDS * len(problems):g} s"
    )
