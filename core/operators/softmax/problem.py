"""The softmax problem: over the middle of three axes, plain or as a logarithm, in both directions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from clgraft.core.operators.softmax.reference import softmax
from clgraft.core.problem import WORD_OF_DTYPE, Argument, Gradient, Problem, sample_argument
from clgraft.core.problem.words import read_words

DIRECTIONS = ("forward", "backward")
WORD = re.compile(r"([ncs])(\d+)")


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
        wide = {name: np.asarray(array, np.float64) for name, array in arrays.items()}
        scale = (scalars or self.trial_scalars())["scale"]
        return {self.arguments()[-1].name: softmax(self, wide, scale)}

    def scalars(self) -> tuple[str, ...]:
        return ("scale",)

    def __str__(self) -> str:
        words = [self.kind, self.direction]
        if self.dtype != "float32":
            words.append(WORD_OF_DTYPE[self.dtype])
        words += [f"n{self.images}", f"c{self.channels}"]
        if self.pixels != 1:
            words.append(f"s{self.pixels}")
        return " ".join((*words, "log") if self.log else words)

    @classmethod
    def from_text(cls, text: str) -> SoftmaxProblem:
        expected = "a direction, a dtype, log, n8, c21 or s49"
        words = read_words(cls.kind, text, WORD, expected, {"direction": DIRECTIONS}, ("log",))
        direction = words.choices.get("direction", "forward")
        sizes = words.take("n"), words.take("c"), words.take("s", 1)
        return cls(direction, *sizes, "log" in words.flags, words.dtype)
