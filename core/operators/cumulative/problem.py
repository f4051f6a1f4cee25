"""The problem of cumulative sums and products along an axis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from clgraft.core.problem import Argument, Gradient, Problem
from clgraft.core.problem.text import DTYPE, Choice, Entry, Flag, Number

OPERATORS = ("sum", "product")
FLAGS = ("exclusive", "reverse")


@dataclass(frozen=True)
class CumulativeProblem(Problem):
    """``x -> y``: y[o, e, i] is the sum, or product, of x[o, 0, i] to x[o, e, i].

    Parameters
    ----------
    operator : str
        ``sum`` or ``product``.
    outer, extent, inner : int
        The sizes of x and y.
    exclusive : bool
        Leave out the element e itself.
    reverse : bool
        From the end of the axis instead.
    dtype : str

    Raises
    ------
    ProblemError
        If a size is negative.
    """

    kind: ClassVar[str] = "cumulative"
    TEXT: ClassVar[tuple[Entry, ...]] = (
        Choice("operator", OPERATORS, "sum", always=True),
        DTYPE,
        Number("outer", "outer"),
        Number("extent", "extent"),
        Number("inner", "inner"),
        *(Flag(flag, flag) for flag in FLAGS),
    )
    examples: ClassVar[tuple[str, ...]] = (
        "sum outer3 extent37 inner5",
        "product outer3 extent9 inner5 exclusive",
        "sum outer2 extent20 inner7 exclusive reverse",
    )

    operator: str
    outer: int
    extent: int
    inner: int
    exclusive: bool = False
    reverse: bool = False
    dtype: str = "float32"

    def __post_init__(self) -> None:
        self._take_counts(outer=0, extent=0, inner=0)
        self._expect_words(operator=OPERATORS)

    def arguments(self) -> tuple[Argument, ...]:
        shape = (self.outer, self.extent, self.inner)
        return Argument("x", "in", shape, self.dtype), Argument("y", "out", shape, self.dtype)

    def gradients(self) -> tuple[Gradient, ...]:
        if self.operator != "sum":
            return super().gradients()
        return (Gradient(replace(self, reverse=not self.reverse), {"x": "dy", "y": "dx"}),)

    @property
    def terms(self) -> int:
        """The elements of the longest sum."""
        return self.extent

    def reference(
        self, arrays: Mapping[str, np.ndarray], scalars: Mapping[str, float] | None = None
    ) -> dict[str, np.ndarray]:
        x = np.asarray(arrays["x"], np.float64)
        x = x[:, ::-1] if self.reverse else x
        if self.exclusive:
            first = np.full_like(x[:, :1], self.operator == "product")
            x = np.concatenate([first, x[:, :-1]], 1)
        y = (np.cumsum if self.operator == "sum" else np.cumprod)(x, axis=1)
        return {"y": y[:, ::-1] if self.reverse else y}
