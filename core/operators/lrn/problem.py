"""The problem of local response normalisation across channels, in both directions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from clgraft.core.operators.lrn.reference import normalize
from clgraft.core.problem import Argument, Gradient, Problem, in_float64
from clgraft.core.problem.text import DTYPE, Entry, Number, direction_word

DIRECTIONS = ("forward", "backward")


@dataclass(frozen=True)
class LRNProblem(Problem):
    """Local response normalisation (Krizhevsky et al. 2012) of (images, channels, pixels).

    Parameters
    ----------
    direction : str
        ``forward``: ``x -> y``; ``backward``: ``x dy -> dx``.
    images, channels, pixels : int
    size : int
        Channels of the window, odd.
    beta : float
        y = x (k + alpha / size * sum of x^2 over the window)^-beta; channels beyond the ends are 0.
    dtype : str

    Notes
    -----
    Scalars ``alpha`` and ``k``.

    Raises
    ------
    ProblemError
        If a number is out of range.
    """

    kind: ClassVar[str] = "lrn"
    TEXT: ClassVar[tuple[Entry, ...]] = (
        direction_word(DIRECTIONS),
        DTYPE,
        Number("n", "images"),
        Number("c", "channels"),
        Number("s", "pixels", 1, always=True),
        Number("size", "size", 5, always=True),
        Number("beta", "beta", 0.75, always=True, real=True),
    )
    directions: ClassVar[tuple[str, ...]] = DIRECTIONS
    examples: ClassVar[tuple[str, ...]] = ("n2 c16 s99 size5 beta0.75",)
    usual_scalars: ClassVar[Mapping[str, float]] = {"alpha": 0.5, "k": 2.0}

    direction: str
    images: int
    channels: int
    pixels: int = 1
    size: int = 5
    beta: float = 0.75
    dtype: str = "float32"

    def __post_init__(self) -> None:
        self._take_counts(images=0, channels=0, pixels=0, size=1)
        self._expect_words(direction=DIRECTIONS)
        object.__setattr__(self, "beta", float(self.beta))
        self._expect(self.size % 2 == 1, "size", self.size, "an odd number")
        self._expect(math.isfinite(self.beta), "beta", self.beta, "a finite number")

    def arguments(self) -> tuple[Argument, ...]:
        *inputs, output = ("x", "y") if self.direction == "forward" else ("x", "dy", "dx")
        shape = (self.images, self.channels, self.pixels)
        return tuple(Argument(n, "out" if n == output else "in", shape, self.dtype) for n in (*inputs, output))

    def part(self, count: int) -> LRNProblem | None:
        return self._part_along("images", count) if self.direction == "forward" else None

    def gradients(self) -> tuple[Gradient, ...]:
        return (Gradient.of(self.with_direction("backward")),) if self.direction == "forward" else super().gradients()

    @property
    def operations(self) -> int:
        """Two for each element of each window, twice that backward."""
        count = 2 * self.images * self.channels * self.pixels * self.size
        return count if self.direction == "forward" else 2 * count

    @property
    def terms(self) -> int:
        """The channels of a window."""
        return self.size

    def reference(
        self, arrays: Mapping[str, np.ndarray], scalars: Mapping[str, float] | None = None
    ) -> dict[str, np.ndarray]:
        wide = in_float64(arrays)
        given = scalars or self.trial_scalars()
        return {self.arguments()[-1].name: normalize(self, wide, given["alpha"], given["k"])}

    def scalars(self) -> tuple[str, ...]:
        return ("alpha", "k")
