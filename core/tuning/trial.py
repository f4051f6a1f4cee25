"""One problem's buffers for tuning: inputs, what every candidate has to give, and how far off it may be."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from clgraft.core.problem import ROUNDING
from clgraft.core.tuning.timing import Buffers, Runner

if TYPE_CHECKING:
    from clgraft.core.planning.launches import Launches
    from clgraft.core.problem import Problem
    from clgraft.core.session.context import Context

ALLOWED = 10.0  # relative to the error that the direct method is expected to have


class Trial:
    """A problem's inputs and its exact results.

    Attributes
    ----------
    inputs, exact : dict of str to numpy.ndarray
        Arguments by name (see `Problem.sample`); `exact` holds the results, by the operator's reference, as far as
        they are determined.
    scalars : dict of str to float
    """

    def __init__(self, problem: Problem, context: Context) -> None:
        self.problem, self.context = problem, context
        self.arguments = problem.arguments()
        self.scalars = problem.trial_scalars()
        self.inputs = problem.sample(np.random.default_rng(5))
        self.exact = problem.determined(problem.reference(self.inputs, self.scalars))
        self._buffers: Buffers | None = None

    def error(self, results: Mapping[str, np.ndarray]) -> float:
        """Return the largest error over what is allowed: at most 1 is right, and not a number never is.

        What is allowed is ten times what the direct method has: a random walk of the roundings of its sum, relative to
        the largest exact value, and the rounding of what is stored. Where the exact value is infinite or not a number
        the result has to be the same.
        """
        worst = 0.0
        read = max((a.size for a in self.arguments if a.role == "in"), default=1)
        results = self.problem.determined(results)
        for name, exact in self.exact.items():
            if not exact.size:
                continue
            terms = max(self.problem.terms, read / exact.size)
            unit = ROUNDING["float64" if self.problem.dtype == "float64" else "float32"]
            unit = unit * (2 + math.sqrt(terms)) + ROUNDING[self.problem.dtype] / 4
            result = np.asarray(results[name], np.float64)
            scale = float(np.max(np.abs(exact), where=np.isfinite(exact), initial=0.0)) or 1.0
            same = (result == exact) | (np.isnan(result) & np.isnan(exact))
            with np.errstate(invalid="ignore"):  # infinity less infinity
                off = np.where(same, 0.0, np.abs(result - exact))
            largest = float(np.max(off)) / (ALLOWED * unit * scale)
            if not largest <= worst:  # also where it is not a number
                worst = largest if largest == largest else math.inf
        return worst

    def runner(self, steps: Launches, name: str) -> Runner:
        """Bind a candidate's steps to the buffers that all candidates share."""
        if self._buffers is None:
            self._buffers = Buffers(self.context, self.arguments, self.inputs)
        return Runner(self.context.plan_launches(self.problem, steps, name), self._buffers, self.scalars)
