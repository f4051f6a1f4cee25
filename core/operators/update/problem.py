"""The update problem: assignments per element whose results take the place of some of the arrays that they read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from clgraft.core.operators.pointwise import PointwiseProblem
from clgraft.core.problem import SMALL, Argument, Problem


@dataclass(frozen=True)
class UpdateProblem(Problem):
    """Assignments per element that change arrays in place.

    Parameters
    ----------
    step : PointwiseProblem
        Its last inputs, as many as it has outputs, are states: y0, y1, ... are their new values. They have the shape
        that all inputs broadcast to.
    dtype : str
        Of everything but the step's arguments that are float32; empty: the step's.

    Raises
    ------
    ProblemError
        If an output is folded or blended, or a state has another shape.
    """

    kind: ClassVar[str] = "update"
    examples: ClassVar[tuple[str, ...]] = (
        "x0[37] x1[37] scalars{rate} : y0 = x1 - rate * x0",
        "x0[5,33] x1[5,33] x2[5,33] : real h = 0.9 * x2 + x0; y0 = x1 - h; y1 = h",
        "f16 x0[5,33] x1[5,33] f32{x1} scalars{rate} : y0 = x1 - rate * x0",
    )

    step: PointwiseProblem
    dtype: str = ""

    def __post_init__(self) -> None:
        dtype = self.dtype or self.step.dtype
        wide = self.step.float32_arguments if dtype in SMALL else ()
        step = replace(self.step, dtype=dtype, float32_arguments=wide)
        count, shape = step.assignments.outputs, step.common_shape
        first = len(step.inputs) - count
        typed = [name for name in wide if name.startswith("x")]
        typed += [f"y{i}" for i in range(count) if f"x{first + i}" in wide]  # as the states that they replace
        step = replace(step, float32_arguments=tuple(typed))
        object.__setattr__(self, "step", step)
        object.__setattr__(self, "dtype", dtype)
        plain = not any(step.reductions) and not step.alpha and not step.beta
        self._expect(plain, "expression", step, "no reductions, alpha or beta")
        self._expect(count <= len(step.inputs), "outputs", count, f"at most {len(step.inputs)}, one for each state")
        states = step.inputs[-count:]
        self._expect(all(state == shape for state in states), "states", f"of shapes {states}", f"shape {shape}")

    @property
    def states(self) -> tuple[str, ...]:
        """Names of the arguments that change."""
        count = len(self.step.inputs)
        return tuple(f"x{i}" for i in range(count - self.step.assignments.outputs, count))

    def arguments(self) -> tuple[Argument, ...]:
        read = self.step.arguments()[: len(self.step.inputs)]
        states = self.states
        return tuple(Argument(a.name, "inout" if a.name in states else "in", a.shape, a.dtype) for a in read)

    def scalars(self) -> tuple[str, ...]:
        return self.step.scalars()

    @property
    def operations(self) -> int:
        """As the step's."""
        return self.step.operations

    def sample(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        return self.step.sample(rng)

    def reference(
        self, arrays: Mapping[str, np.ndarray], scalars: Mapping[str, float] | None = None
    ) -> dict[str, np.ndarray]:
        found = self.step.reference(arrays, scalars or self.trial_scalars())
        return {name: found[f"y{i}"] for i, name in enumerate(self.states)}

    def __str__(self) -> str:
        return f"{self.kind} {str(self.step).partition(' ')[2]}"

    @classmethod
    def from_text(cls, text: str) -> UpdateProblem:
        return cls(PointwiseProblem.from_text(text))
