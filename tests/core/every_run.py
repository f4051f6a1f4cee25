"""Every problem of the sets with every algorithm that serves it, on random data: for checks of the runs themselves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from clgraft import core
from clgraft.core.errors import ClgraftError
from clgraft.core.planning.implementation import implementations
from tests.problem_sets import problem_lines

DIRECTIONS = {
    "conv": ("forward", "backward_data", "backward_filter", "backward_bias"),
    "depthwise": ("forward", "backward_data", "backward_filter"),
    "grouped": ("forward", "backward_data"),
    "deconvolution": ("forward", "backward_data", "backward_filter"),
    "dense": ("forward", "backward_data", "backward_weight"),
    "pooling": ("forward", "backward"),
    "batchnorm": ("forward_training", "forward_inference", "backward_training", "backward_inference"),
    "pointwise": ("",),
    "copying": ("",),
    "dropout": ("",),
    "softmax": ("forward", "backward"),
    "crossentropy": ("forward", "count", "backward"),
    "lrn": ("forward", "backward"),
}


def plans(sets: Sequence[str], largest: int, every: int = 1) -> Iterator[core.Plan]:
    """Give plans, one for each algorithm that does not decline.

    Parameters
    ----------
    sets : sequence of str
        Keys of `DIRECTIONS`.
    largest : int
        Number of elements of all arguments together, above which a problem is left out.
    every : int
        Take only every so many-th problem.
    """
    context = core.context()
    count = 0
    for name in sets:
        for text in problem_lines(name).values():
            kind, _, rest = text.partition(" ")
            for direction in DIRECTIONS[name]:
                problem = core.parse(" ".join(filter(None, (kind, direction, rest))))
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
    """Give random inputs, and outputs of NaN."""
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
