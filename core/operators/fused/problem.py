"""A convolution, its data gradient or a dense layer with pointwise operators that follow it, as one problem."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from clgraft.core.errors import ProblemError
from clgraft.core.operators.conv.problem import ConvProblem
from clgraft.core.operators.dense.problem import DenseProblem
from clgraft.core.operators.pointwise import PointwiseProblem
from clgraft.core.planning.epilogue import CHANNEL, WHOLE, Epilogue
from clgraft.core.problem import Argument, Gradient, Problem, parse
from clgraft.core.problem.base import shortened
from clgraft.core.problem.layout import FIRST, LAST

KINDS = (CHANNEL, WHOLE)
MOST_EXTRAS = 8  # each takes two kernel arguments
TEXT = re.compile(r"(.*?)\s+with((?:\s+\w+)*)(?:\s+scalars\{([^}]*)\})?\s*:\s*(.*)", re.DOTALL)


def fusable(problem: Problem) -> bool:
    """Return whether a program for each element of its result can follow a problem."""
    if isinstance(problem, DenseProblem):
        return problem.direction == "forward"
    return isinstance(problem, ConvProblem) and problem.direction in ("forward", "backward_data")


@dataclass(frozen=True)
class FusedProblem(Problem):
    """A convolution, forward or backward data, or a forward dense layer, and a program for each element of its result.

    Parameters
    ----------
    base : ConvProblem or DenseProblem
        In the forward direction; of a convolution also backward_data.
    extras : tuple of str
        For each further input of the program, x1, x2, ...: ``channel`` for a vector with one element for each channel
        of the result, ``whole`` for an array of the result's shape.
    expression : str
        Assignments in the language of `PointwiseProblem` that compute y0 from x0, the base's result, and x1, x2, ...
    parameters : tuple of str
        Names of the scalars that every run gives.
    dtype : str
        Of everything; empty: the base's.

    Raises
    ------
    ProblemError
        If the base is another problem, or the expression cannot be read or has several outputs.
    """

    kind: ClassVar[str] = "fused"
    examples: ClassVar[tuple[str, ...]] = (
        "conv forward n2 ic5 ih9 iw11 oc7 kh3 kw3 ph1 pw1 b1 with channel whole : y0 = fmax(x0 * x1 + x2, 0)",
        "conv forward n1 ic5 ih6 iw7 oc9 kh3 kw3 layout=nhwc with channel whole : y0 = fmax(x0 * x1 + x2, 0)",
        "conv forward n2 ic16 ih7 iw7 oc32 kh1 kw1 b1 with whole : y0 = x0 + x1 > 0 ? x0 + x1 : 0",
        "conv forward n2 g12 ic12 ih13 iw13 oc12 kh3 kw3 ph1 pw1 with : y0 = clamp(x0, 0, 6)",
        "dense forward n8 i257 o129 b1 with channel scalars{slope} : y0 = x0 > x1 ? x0 : slope * x0",
        "conv backward_data n2 ic16 ih7 iw8 oc24 kh3 kw3 sh2 sw2 with whole whole : y0 = x2 > 0 ? x0 + x1 : 0",
    )

    base: ConvProblem | DenseProblem
    extras: tuple[str, ...]
    expression: str
    parameters: tuple[str, ...] = ()
    dtype: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "extras", tuple(self.extras))
        object.__setattr__(self, "parameters", tuple(self.parameters))
        object.__setattr__(self, "expression", " ".join(self.expression.split()))
        self._expect(fusable(self.base), "problem", self.base, "a forward convolution or dense layer, or backward_data")
        object.__setattr__(self, "base", replace(self.base, dtype=self.dtype or self.base.dtype))
        object.__setattr__(self, "dtype", self.base.dtype)
        self._expect(set(self.extras) <= set(KINDS), "inputs", self.extras, f"words of {KINDS}")
        self._expect(len(self.extras) <= MOST_EXTRAS, "inputs", self.extras, f"at most {MOST_EXTRAS}")
        self._expect(self.pointwise.assignments.outputs == 1, "expression", self.expression, "one output, y0")

    @property
    def result(self) -> str:
        """The name of the result: the base's."""
        return self.base.arguments()[-1].name

    @property
    def shape(self) -> tuple[int, ...]:
        """The result's shape."""
        return self.base.arguments()[-1].shape

    @property
    def by_channel(self) -> tuple[int, int, int]:
        """The result's shape with one axis of channels: (batch, channels, pixels), or (pixels, channels, 1)."""
        if getattr(self.base, "layout", FIRST) == LAST:
            return (math.prod(self.shape[:-1]), self.shape[-1], 1)
        batch, channels, *rest = self.shape
        return (batch, channels, math.prod(rest))

    @property
    def pointwise(self) -> PointwiseProblem:
        """What follows the base, as a problem of its own over `by_channel`."""
        shapes = {WHOLE: self.by_channel, CHANNEL: (self.by_channel[1], 1)}
        inputs = (shapes[WHOLE], *(shapes[kind] for kind in self.extras))
        return PointwiseProblem(inputs, self.expression, (), self.parameters, dtype=self.dtype)

    @property
    def epilogue(self) -> Epilogue:
        """What follows the base, as a part of its kernels."""
        return Epilogue(self.pointwise.assignments.c_text((0,)), self.extras, self.parameters)

    @property
    def tuned_through(self) -> Problem:
        """The layer: what follows it is computed by the implementation that serves the layer alone."""
        return self.base

    def arguments(self) -> tuple[Argument, ...]:
        *inputs, output = self.base.arguments()
        shapes = {WHOLE: self.shape, CHANNEL: (self.by_channel[1],)}
        extras = (Argument(f"x{i}", "in", shapes[kind], self.dtype) for i, kind in enumerate(self.extras, 1))
        return (*inputs, *extras, output)

    def scalars(self) -> tuple[str, ...]:
        return self.parameters

    def part(self, count: int) -> FusedProblem | None:
        base = self.base.part(count)
        return None if base is None else replace(self, base=base)  # type: ignore[arg-type]

    def gradients(self) -> tuple[Gradient, ...]:
        """Return the base, whose result nobody kept, and then the gradients of the program and of the base."""
        if self.result != "y":
            return super().gradients()

        def symbol(name: str) -> str:
            return {"x0": "_base", "dx0": "_dbase", "dy0": "dy"}.get(name, name)

        found = [Gradient.of(self.base, {"y": "_base"})]
        for gradient in self.pointwise.gradients():
            names = {argument: symbol(name) for argument, name in gradient.arguments.items()}
            found.append(replace(gradient, arguments=names))
        if any("_dbase" in gradient.writes for gradient in found):
            found += (Gradient.of(gradient.problem, {"dy": "_dbase"}) for gradient in self.base.gradients())
        return tuple(found)

    @property
    def operations(self) -> int:
        """The base's operations and those of the program."""
        return self.base.operations + self.pointwise.operations

    @property
    def terms(self) -> int:
        """As the base's."""
        return self.base.terms

    def reference(
        self, arrays: Mapping[str, np.ndarray], scalars: Mapping[str, float] | None = None
    ) -> dict[str, np.ndarray]:
        y = self.base.reference({a.name: arrays[a.name] for a in self.base.arguments()[:-1]})[self.result]
        problem = self.pointwise
        given = {"x0": y, **{f"x{i}": np.asarray(arrays[f"x{i}"], np.float64) for i in range(1, len(self.extras) + 1)}}
        shaped = {a.name: given[a.name].reshape(a.shape) for a in problem.arguments()[:-1]}
        return {self.result: problem.reference(shaped, scalars or self.trial_scalars())["y0"].reshape(self.shape)}

    def __str__(self) -> str:
        words = [self.kind, str(self.base), "with", *self.extras]
        if self.parameters:
            words.append(f"scalars{{{','.join(self.parameters)}}}")
        return " ".join((*words, ":", self.expression))

    @classmethod
    def from_text(cls, text: str) -> FusedProblem:
        found = TEXT.fullmatch(text.strip())
        if not found:
            expected = "a problem, 'with', the kinds of further inputs, ':' and an expression"
            raise ProblemError(f"[{cls.kind}] got {shortened(text)}, expected {expected}")
        scalars = tuple(name.strip() for name in (found[3] or "").split(",") if name.strip())
        return cls(parse(found[1]), tuple(found[2].split()), found[4], scalars)  # type: ignore[arg-type]
