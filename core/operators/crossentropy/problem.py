"""The cross entropy problem: the loss of probabilities against labels, and its gradient at the softmax's input."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import ClassVar

from clgraft.core.problem import WORD_OF_DTYPE, Argument, Problem
from clgraft.core.problem.words import read_words

DIRECTIONS = ("forward", "count", "backward")
FLAGS = ("ignoring", "weighted", "by_count")
WORD = re.compile(r"([ncs])(\d+)")


@dataclass(frozen=True)
class CrossEntropyProblem(Problem):
    """Cross entropy of probabilities y (images, channels, pixels) and labels (images, pixels).

    Parameters
    ----------
    direction : str
        ``forward``: ``y label -> loss counts``, loss (1,) = -sum log(max(y at the label, lowest));
        ``count``: ``label -> counts``;
        ``backward``: ``y label [dy] [counts] -> dx``, dx = scale (y - target).
    images, channels, pixels : int
        Products of the sizes before, of and behind the axis of the softmax.
    ignoring : bool
        Labels that equal the scalar ``ignored`` count nowhere and have no gradient.
    weighted : bool
        The gradient is multiplied by dy, of the shape of y.
    by_count : bool
        The gradient is divided by counts[0], or by 1 if that is 0.
    dtype : str
        Of all but counts, which is int32.

    Notes
    -----
    A label is a number of the problem's dtype whose fraction is cut off. counts (2,): the labels that count, and how
    many of these name no channel. Such a one adds nothing to the loss, and nothing of it is read; its gradient is that
    of a target of 0. The target is 1 - smooth at the label and smooth / (channels - 1) elsewhere (Szegedy et al. 2016).

    Scalars: forward ``lowest``; backward ``scale smooth``; with `ignoring` all of them ``ignored``.

    Raises
    ------
    ProblemError
        If the sizes cannot be.
    """

    kind: ClassVar[str] = "crossentropy"

    direction: str
    images: int
    channels: int
    pixels: int = 1
    ignoring: bool = False
    weighted: bool = False
    by_count: bool = False
    dtype: str = "float32"

    def __post_init__(self) -> None:
        self._take_counts(images=0, channels=0, pixels=0)
        self._expect_words(direction=DIRECTIONS)
        if self.direction != "backward":  # they say nothing there: one text for one problem
            object.__setattr__(self, "weighted", False)
            object.__setattr__(self, "by_count", False)

    def with_direction(self, direction: str) -> CrossEntropyProblem:
        """Give the same cross entropy in another direction."""
        return replace(self, direction=direction)

    def arguments(self) -> tuple[Argument, ...]:
        full, labels = (self.images, self.channels, self.pixels), (self.images, self.pixels)
        table = {
            "y": ("in", full, self.dtype),
            "label": ("in", labels, self.dtype),
            "dy": ("in", full, self.dtype),
            "counts": ("in" if self.direction == "backward" else "out", (2,), "int32"),
            "loss": ("out", (1,), self.dtype),
            "dx": ("out", full, self.dtype),
        }
        names = {
            "forward": "y label loss counts",
            "count": "label counts",
            "backward": "y label" + " dy" * self.weighted + " counts" * self.by_count + " dx",
        }[self.direction]
        return tuple(Argument(name, *table[name]) for name in names.split())

    def scalars(self) -> tuple[str, ...]:
        own = {"forward": ("lowest",), "count": (), "backward": ("scale", "smooth")}[self.direction]
        return (*own, "ignored") if self.ignoring else own

    def __str__(self) -> str:
        words = [self.kind, self.direction]
        if self.dtype != "float32":
            words.append(WORD_OF_DTYPE[self.dtype])
        words += [f"n{self.images}", f"c{self.channels}"]
        if self.pixels != 1:
            words.append(f"s{self.pixels}")
        return " ".join((*words, *(flag for flag in FLAGS if getattr(self, flag))))

    @classmethod
    def from_text(cls, text: str) -> CrossEntropyProblem:
        expected = f"a direction, a dtype, one of {FLAGS}, n8, c21 or s49"
        words = read_words(cls.kind, text, WORD, expected, {"direction": DIRECTIONS}, FLAGS)
        direction = words.choices.get("direction", "forward")
        sizes = words.take("n"), words.take("c"), words.take("s", 1)
        return cls(direction, *sizes, *(flag in words.flags for flag in FLAGS), dtype=words.dtype)
