"""The softmax problem: over the middle of three axes, plain or as a logarithm, in both directions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from clgraft.core.operators.softmax.reference import softmax
from clgraft.core.problem import Argument, Gradient, Problem, in_float64, sample_argument
from clgraft.core.problem.text import DTYPE, Entry, Flag, Number, direction_word

DIRECTIONS = ("forward", "backward")


@dataclass(frozen=True)
class SoftmaxProblem(Problem):
    """Softmax of (images, channels, pixels) over the channels.

    Parameters
    ----------
    direction : str
        ``forward``: ``x -> y``, y = exp(scale x) / sum(exp(scale x)); ``backward``: ``y dy -> dx``.
    images, channels, pixels : int
        Products of the sizes before, of and after the axis.
    log : bool
        y is the logarithm of the softmax.
    dtype : str

    Notes
    -----
    The greatest value is subtracted first, so that no power overflows. Scalar ``scale`` is 1 / temperature; a negative
    one makes it a softmin. A NaN, an infinity of the scale's sign, or nothing but infinities of the other one make all
    of their channels NaN. x and y, or dy and dx, may be the same memory.

    Raises
    ------
    ProblemError
        If a size is negative.
    """

    kind: ClassVar[str] = "softmax"
    TEXT: ClassVar[tuple[Entry, ...]] = (
        direction_word(DIRECTIONS),
        DTYPE,
        Number("n", "images"),
        Number("c", "channels"),
        Number("s", "pixels", 1),
        Flag("log", "log"),
    )
    directions: ClassVar[tuple[str, ...]] = DIRECTIONS
    examples: ClassVar[tuple[str, ...]] = ("n9 c37", "n2 c21 s99", "n9 c37 log")
    usual_scalars: ClassVar[Mapping[str, float]] = {"scale": 0.9}

    direction: str
    images: int
    channels: int
    pixels: int = 1
    log: bool = False
    dtype: str = "float32"

    def __post_init__(self) -> None:
        self._take_counts(images=0, channels=0, pixels=0)
        self._expect_words(direction=DIRECTIONS)

    def arguments(self) -> tuple[Argument, ...]:
        names = "x y" if self.direction == "forward" else "y dy dx"
        shape = (self.images, self.channels, self.pixels)
        *inputs, output = names.split()
        return (
            *(Argument(name, "in", shape, self.dtype) for name in inputs),
            Argument(output, "out", shape, self.dtype),
        )

    def gradients(self) -> tuple[Gradient, ...]:
        return (Gradient.of(self.with_direction("backward")),) if self.direction == "forward" else super().gradients()

    @property
    def operations(self) -> int:
        """Four for each element: the maximum, the exponential, the sum, the quotient; backward a product instead."""
        return 4 * self.images * self.channels * self.pixels

    @property
    def terms(self) -> int:
        """The channels, over which both directions sum."""
        return self.channels

    def sample(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Return inputs; backward, y is the softmax of something."""
        given = {a.name: sample_argument(a, rng) for a in self.arguments() if a.role == "in"}
        if "y" in given:
            given["y"] = softmax(self.with_direction("forward"), {"x": given["y"]}, 1.0).astype(self.dtype)
        return given

    def reference(
        self, arrays: Mapping[str, np.ndarray], scalars: Mapping[str, float] | None = None
    ) -> dict[str, np.ndarray]:
        wide = in_float64(arrays)
        scale = (scalars or self.trial_scalars())["scale"]
        return {self.arguments()[-1].name: softmax(self, wide, scale)}

    def scalars(self) -> tuple[str, ...]:
        return ("scale",)
