"""The gradients of a convolution's data and weights, which both read dy, as one problem."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from clgraft.core.operators.conv.problem import ConvProblem
from clgraft.core.problem import Argument, Problem, parse

DIRECTIONS = ("backward_data", "backward_filter")


@dataclass(frozen=True)
class GradientsProblem(Problem):
    """The gradients of a convolution's data and of its weights: ``x w dy -> dx dw``.

    Parameters
    ----------
    conv : ConvProblem
        The forward convolution, without a bias.
    dtype : str
        Of everything; empty: the convolution's.

    Raises
    ------
    ProblemError
        If the convolution has a bias or another direction.
    """

    kind: ClassVar[str] = "gradients"
    apart: ClassVar[bool] = True
    examples: ClassVar[tuple[str, ...]] = (
        "conv forward g19 n3 ic19 ih7 iw7 oc19 kh3 kw3 ph1 pw1",
        "conv forward g3 n2 ic3 ih21 iw75 oc3 kh3 kw3 sh2 sw2 ph1 pw1",
        "conv forward n2 ic3 ih5 iw6 oc4 kh3 kw3",
    )

    conv: ConvProblem
    dtype: str = ""

    def __post_init__(self) -> None:
        conv = self.conv
        plain = isinstance(conv, ConvProblem) and conv.direction == "forward" and not conv.bias
        self._expect(plain, "conv", conv, "a forward convolution without a bias")
        object.__setattr__(self, "conv", replace(conv, dtype=self.dtype or conv.dtype))
        object.__setattr__(self, "dtype", self.conv.dtype)

    @property
    def parts(self) -> tuple[ConvProblem, ...]:
        """The two gradients as problems of their own."""
        return tuple(self.conv.with_direction(direction) for direction in DIRECTIONS)

    def arguments(self) -> tuple[Argument, ...]:
        x, w, y = self.conv.arguments()
        inputs = (x, w, replace(y, name="dy", role="in"))
        return (*inputs, *(replace(a, name=f"d{a.name}", role="out") for a in (x, w)))

    @property
    def operations(self) -> int:
        """Both gradients' operations."""
        return sum(part.operations for part in self.parts)

    @property
    def terms(self) -> int:
        """The terms of the longer sums."""
        return max(part.terms for part in self.parts)

    def reference(
        self, arrays: Mapping[str, np.ndarray], scalars: Mapping[str, float] | None = None
    ) -> dict[str, np.ndarray]:
        found: dict[str, np.ndarray] = {}
        for part in self.parts:
            found.update(part.reference({a.name: arrays[a.name] for a in part.arguments() if a.role == "in"}))
        return found

    def __str__(self) -> str:
        return f"{self.kind} {self.conv}"

    @classmethod
    def from_text(cls, text: str) -> GradientsProblem:
        return cls(parse(text))  # type: ignore[arg-type]
