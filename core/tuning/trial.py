"""One problem's buffers for tuning: inputs, what every candidate has to give, and how far off it may be."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from clgraft.core.operators.conv.reference import convolve
from clgraft.core.planning.choice import Choice
from clgraft.core.planning.implementation import implementations
from clgraft.core.tuning.timing import Buffers, Runner

if TYPE_CHECKING:
    from clgraft.core.planning.launches import Launches
    from clgraft.core.problem import Argument, Problem
    from clgraft.core.session.context import Context

ROUNDING = {"float32": 2.0**-24, "float16": 2.0**-11, "float64": 2.0**-53}
ALLOWED = 10.0  # times the error that the direct method is expected to have
POSITIVE = ("var", "gamma")  # parts of names of arguments that are no differences
SCALARS = {"eps": 1e-5}
OTHER_SCALAR = 0.5


class Trial:
    """A problem's inputs and its exact results.

    The exact results of convolutions are computed by NumPy in float64, those of other problems by the implementation
    that never declines, in float64 where the device has it.

    Attributes
    ----------
    inputs, exact : dict of str to numpy.ndarray
        Arguments by name; `exact` holds what is written.
    scalars : dict of str to float
    """

    def __init__(self, problem: Problem, context: Context) -> None:
        self.problem, self.context = problem, context
        self.arguments = problem.arguments()
        self.scalars = {name: SCALARS.get(name, OTHER_SCALAR) for name in problem.scalars()}
        rng = np.random.default_rng(5)
        self.inputs = {a.name: _random(a, rng) for a in self.arguments if a.role != "out"}
        if problem.kind == "pool" and "y" in self.inputs:
            self.inputs["y"] = self._pooled().astype(problem.dtype)
        self.exact = self._exact()
        self._buffers: Buffers | None = None

    def error(self, results: Mapping[str, np.ndarray]) -> float:
        """Give the largest error over what is allowed; at most 1 is right, not a number never is.

        What is allowed is ten times what the direct method has: a random walk of the roundings of its sum, relative to
        the largest exact value, and the rounding of what is stored.
        """
        worst = 0.0
        read = max((a.size for a in self.arguments if a.role == "in"), default=1)
        for name, exact in self.exact.items():
            if not exact.size:
                continue
            terms = max(_terms(self.problem), read / exact.size)
            unit = ROUNDING["float64" if self.problem.dtype == "float64" else "float32"]
            unit = unit * (2 + math.sqrt(terms)) + ROUNDING[self.problem.dtype] / 4
            scale = float(np.max(np.abs(exact))) or 1.0
            off = np.abs(np.asarray(results[name], np.float64) - exact)
            largest = float(np.max(off)) / (ALLOWED * unit * scale)
            if not largest <= worst:  # also where it is not a number
                worst = largest if largest == largest else math.inf
        return worst

    def _exact(self) -> dict[str, np.ndarray]:
        problem = self.problem
        if problem.kind == "conv":
            wide = {name: array.astype(np.float64) for name, array in self.inputs.items()}
            return {self.arguments[-1].name: convolve(problem, wide)}
        return self._by_last(problem)

    def _pooled(self) -> np.ndarray:
        forward = self.problem.with_direction("forward")  # type: ignore[attr-defined]
        names = [a.name for a in forward.arguments()]
        return self._run_last(forward, {name: self.inputs[name] for name in names if name in self.inputs})["y"]

    def _by_last(self, problem: Problem) -> dict[str, np.ndarray]:
        if not self.context.device.has_fp64:
            return self._run_last(problem, self.inputs)
        wide: Any = replace(problem, dtype="float64")  # type: ignore[type-var]
        return self._run_last(wide, {name: array.astype(np.float64) for name, array in self.inputs.items()})

    def _run_last(self, problem: Problem, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        name = implementations(problem)[-1].NAME
        plan = self.context.plan_launches(problem, self.context.launches(problem, Choice(name)), name)
        outputs = {
            a.name: np.full(a.shape, np.nan, a.dtype) if a.role == "out" else inputs[a.name].copy()
            for a in plan.arguments
            if a.role != "in"
        }
        given = {a.name: inputs[a.name] for a in plan.arguments if a.role == "in"}
        plan.run(scalars=self.scalars, **given, **outputs)
        return {key: array.astype(np.float64) for key, array in outputs.items()}

    def runner(self, steps: Launches, name: str) -> Runner:
        """Bind a candidate's steps to the buffers that all candidates share."""
        if self._buffers is None:
            self._buffers = Buffers(self.context, self.arguments, self.inputs)
        return Runner(self.context.plan_launches(self.problem, steps, name), self._buffers, self.scalars)


def _random(argument: Argument, rng: np.random.Generator) -> np.ndarray:
    """Give an input's numbers: normal ones, or positive ones where the name is of a variance or a scale."""
    if any(word in argument.name for word in POSITIVE):
        return rng.uniform(0.5, 1.5, argument.shape).astype(argument.dtype)
    if argument.dtype == "float32":
        return rng.standard_normal(argument.shape, np.float32)
    return rng.standard_normal(argument.shape).astype(argument.dtype)


def _terms(problem: Any) -> float:
    """Give how many products a result of a convolution or a dense layer sums; 1 for other problems."""
    if problem.kind == "dense":
        return {"forward": problem.inputs, "backward_data": problem.outputs}.get(problem.direction, problem.batch)
    if problem.kind != "conv":
        return 1
    if problem.direction.startswith("backward_filter") or problem.direction == "backward_bias":
        return problem.batch * math.prod(problem.out_size)
    channels = problem.in_channels if problem.direction == "forward" else problem.out_channels
    return channels // problem.groups * math.prod(problem.kernel)
