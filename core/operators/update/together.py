"""The problem of several updates together: the same assignments for arrays of several sizes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from clgraft.core.errors import ProblemError
from clgraft.core.operators.pointwise import PointwiseProblem
from clgraft.core.operators.update.problem import UpdateProblem
from clgraft.core.problem import Argument, Problem

MOST_ARRAYS = 128  # of a problem
HEAD = re.compile(r"sizes\[([\d,]+)\](?: own\{([\w,]*)\})? ?(.*)", re.DOTALL)


@dataclass(frozen=True)
class UpdatesProblem(Problem):
    """Updates of several arrays, each as `UpdateProblem` has it.

    Parameters
    ----------
    step : PointwiseProblem
        That of the first array, as a vector. Inputs of one element (of shape (1,)) are the same for all arrays.
    sizes : tuple of int
        Elements of each array; the first is the step's.
    own : tuple of str
        Those of the step's scalars that have a value for each array: ``rate`` becomes ``rate_0``, ``rate_1``, ...
    dtype : str
        Of everything but the step's arguments that are float32; empty: the step's.

    Notes
    -----
    Input i of array a is the argument ``xi_a``; the ones of one element are ``xi``. A step of one element has none of
    these.

    Raises
    ------
    ProblemError
        If the step is no update of vectors, a size is none, or a scalar is unknown.
    """

    kind: ClassVar[str] = "updates"
    examples: ClassVar[tuple[str, ...]] = (
        "sizes[37,5] own{rate} x0[37] x1[37] scalars{rate} : y0 = x1 - rate * x0",
        "sizes[5,1000,33] x0[5] x1[1] x2[5] x3[5] scalars{keep} : real h = keep * x3 + x0 * x1; y0 = x2 - h; y1 = h",
        "sizes[33,5] f16 x0[33] x1[1] x2[33] f32{x1,x2} : y0 = x2 - x1 * x0",
    )

    step: PointwiseProblem
    sizes: tuple[int, ...]
    own: tuple[str, ...] = ()
    dtype: str = ""

    def __post_init__(self) -> None:
        update = UpdateProblem(self.step, self.dtype)
        sizes, own = tuple(int(size) for size in self.sizes), tuple(self.own)
        for name, value in (("step", update.step), ("dtype", update.dtype), ("sizes", sizes), ("own", own)):
            object.__setattr__(self, name, value)
        shapes = self.step.inputs
        expected = f"vectors of {sizes[:1]} elements, or of one"
        self._expect(bool(sizes) and set(shapes) <= {sizes[:1], (1,)}, "shapes", shapes, expected)
        self._expect(0 < len(sizes) <= MOST_ARRAYS, "sizes", sizes, f"1 to {MOST_ARRAYS} numbers")
        unknown = [name for name in own if name not in self.step.parameters]
        self._expect(not unknown, "own", unknown, f"scalars of {self.step.parameters}")

    @property
    def states(self) -> tuple[int, ...]:
        """Numbers of the inputs that change."""
        count = len(self.step.inputs)
        return tuple(range(count - self.step.assignments.outputs, count))

    @property
    def shared(self) -> tuple[int, ...]:
        """Numbers of the inputs of one element that all arrays read."""
        vectors = self.step.inputs[-1] != (1,)
        return tuple(i for i, shape in enumerate(self.step.inputs) if vectors and shape == (1,))

    def arguments(self) -> tuple[Argument, ...]:
        single, states = self.shared, self.states
        alone = [Argument(f"x{i}", "in", (1,), self.step.type_of(f"x{i}")) for i in single]
        each = [
            Argument(f"x{i}_{a}", "inout" if i in states else "in", (size,), self.step.type_of(f"x{i}"))
            for a, size in enumerate(self.sizes)
            for i in range(len(self.step.inputs))
            if i not in single
        ]
        return (*alone, *each)

    def scalars(self) -> tuple[str, ...]:
        shared = [name for name in self.step.scalars() if name not in self.own]
        return (*shared, *(f"{name}_{a}" for a in range(len(self.sizes)) for name in self.own))

    @property
    def terms(self) -> int:
        """None: nothing is added up."""
        return self.step.terms

    @property
    def operations(self) -> int:
        """As the steps' together."""
        return sum(self.alone(a).operations for a in range(len(self.sizes)))

    def alone(self, a: int) -> UpdateProblem:
        """Return the update of one array."""
        size, single = self.sizes[a], self.shared
        shapes = ((1,) if i in single else (size,) for i in range(len(self.step.inputs)))
        return UpdateProblem(replace(self.step, inputs=tuple(shapes)))

    def named(self, a: int) -> dict[str, str]:
        """Return the names of the arguments of one array's update in this problem."""
        single = self.shared
        return {f"x{i}": f"x{i}" if i in single else f"x{i}_{a}" for i in range(len(self.step.inputs))}

    def sample(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        found: dict[str, np.ndarray] = {}
        for a in range(len(self.sizes)):
            arrays = self.alone(a).sample(rng)
            found.update((new, arrays[old]) for old, new in self.named(a).items() if new not in found)
        return {argument.name: found[argument.name] for argument in self.arguments()}

    def reference(
        self, arrays: Mapping[str, np.ndarray], scalars: Mapping[str, float] | None = None
    ) -> dict[str, np.ndarray]:
        given, found = scalars or self.trial_scalars(), {}
        for a in range(len(self.sizes)):
            names = self.named(a)
            numbers = {n: given[f"{n}_{a}" if n in self.own else n] for n in self.step.scalars()}
            results = self.alone(a).reference({old: arrays[new] for old, new in names.items()}, numbers)
            found.update({names[name]: result for name, result in results.items()})
        return found

    def __str__(self) -> str:
        own = f" own{{{','.join(self.own)}}}" if self.own else ""
        sizes = ",".join(map(str, self.sizes))
        return f"{self.kind} sizes[{sizes}]{own} {str(self.step).partition(' ')[2]}"

    @classmethod
    def from_text(cls, text: str) -> UpdatesProblem:
        found = HEAD.fullmatch(text.strip())
        if found is None:
            raise ProblemError(f"[{cls.kind}] got {text!r}, expected sizes[...], own{{...}} if any, and a step")
        sizes, own, step = found[1], found[2] or "", found[3]
        return cls(
            PointwiseProblem.from_text(step), tuple(map(int, sizes.split(","))), tuple(filter(None, own.split(",")))
        )
