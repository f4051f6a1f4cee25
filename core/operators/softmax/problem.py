"""The softmax problem: over the middle of three axes, plain or as a logarithm, in both directions."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import ClassVar

from clgraft.core.problem import WORD_OF_DTYPE, Argument, Problem
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
        Products of the sizes before, of and behind the axis.
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
        If the sizes cannot be.
    """

    kind: ClassVar[str] = "softmax"

    direction: str
    images: int
    channels: int
    pixels: int = 1
    log: bool = False
    dtype: str = "float32"

    def __post_init__(self) -> None:
        self._take_counts(images=0, channels=0, pixels=0)
        self._expect_words(direction=DIRECTIONS)

    def with_direction(self, direction: str) -> SoftmaxProblem:
        """Give the same softmax in another direction."""
        return replace(self, direction=direction)

    def arguments(self) -> tuple[Argument, ...]:
        names = "x y" if self.direction == "forward" else "y dy dx"
        shape = (self.images, self.channels, self.pixels)
        *inputs, output = names.split()
        return (
            *(Argument(name, "in", shape, self.dtype) for name in inputs),
            Argument(output, "out", shape, self.dtype),
        )

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
