"""The cross entropy problem: the loss of probabilities against labels, and its gradient at the softmax's input."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from clgraft.core.operators.crossentropy.reference import cross_entropy
from clgraft.core.operators.pointwise.problem import PointwiseProblem
from clgraft.core.operators.softmax.problem import SoftmaxProblem
from clgraft.core.problem import Argument, Gradient, Problem, sample_argument
from clgraft.core.problem.text import DTYPE, Entry, Flag, Number, direction_word

DIRECTIONS = ("forward", "count", "backward")
FLAGS = ("ignoring", "weighted", "by_count")


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
        Products of the sizes before, of and after the axis of the softmax.
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
        If a size is negative.
    """

    kind: ClassVar[str] = "crossentropy"
    TEXT: ClassVar[tuple[Entry, ...]] = (
        direction_word(DIRECTIONS),
        DTYPE,
        Number("n", "images"),
        Number("c", "channels"),
        Number("s", "pixels", 1),
        *(Flag(flag, flag) for flag in FLAGS),
    )
    directions: ClassVar[tuple[str, ...]] = DIRECTIONS
    examples: ClassVar[tuple[str, ...]] = ("n9 c37", "n2 c21 s99 ignoring", "n5 c9 weighted by_count")
    usual_scalars: ClassVar[Mapping[str, float]] = {
        "scale": 0.9,
        "lowest": 1e-8,
        "smooth": 0.1,
        "ignored": 0.0,
    }

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
        if self.direction != "backward":  # unused in these directions: equal problems print equally
            object.__setattr__(self, "weighted", False)
            object.__setattr__(self, "by_count", False)

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

    def gradients(self) -> tuple[Gradient, ...]:
        """Return the gradient with respect to the input x of the softmax (of scale 1) that made y.

        Where a probability is below ``lowest`` the gradient is that of the loss without this bound, and where a label
        names no channel that of a target of 0.
        """
        if self.direction == "count":
            return ()
        if self.direction != "forward":
            return super().gradients()
        softmax = SoftmaxProblem("forward", self.images, self.channels, self.pixels, dtype=self.dtype)
        shape = (self.images, self.channels, self.pixels)
        back = self.with_direction("backward")
        times = PointwiseProblem((shape, (1,)), "y0 = x0 * x1;", dtype=self.dtype)
        return (
            Gradient.of(back, {"dx": "_dx"}, {"scale": 1.0, "smooth": 0.0}, softmax),
            Gradient.of(times, {"x0": "_dx", "x1": "dloss", "y0": "dx"}, through=softmax),
        )

    @property
    def operations(self) -> int:
        """One for each label, and backward two for each probability."""
        labels = self.images * self.pixels
        return 2 * labels * self.channels if self.direction == "backward" else labels

    @property
    def nbytes(self) -> int:
        """Bytes that have to move at least; the loss reads one probability for each label."""
        if self.direction != "forward":
            return super().nbytes
        unread = self.images * self.pixels * max(0, self.channels - 1)
        return super().nbytes - unread * np.dtype(self.dtype).itemsize

    @property
    def terms(self) -> int:
        """The labels, over which the loss is summed."""
        return 1 if self.direction == "backward" else self.images * self.pixels

    def sample(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Return probabilities, labels of which a few are no channel's, weights, and the counts of these labels."""
        given = {a.name: sample_argument(a, rng) for a in self.arguments() if a.role == "in" and a.name != "counts"}
        labels = rng.integers(-1, self.channels + 1, (self.images, self.pixels))
        given["label"] = labels.astype(self.dtype)
        if "y" in given:
            power = np.exp(given["y"].astype(np.float64))
            given["y"] = (power / power.sum(1, keepdims=True)).astype(self.dtype)
        if self.by_count:
            counts = cross_entropy(self.with_direction("count"), given, {"ignored": self.usual_scalars["ignored"]})
            given["counts"] = counts["counts"].astype(np.int32)
        return {a.name: given[a.name] for a in self.arguments() if a.role == "in"}

    def reference(
        self, arrays: Mapping[str, np.ndarray], scalars: Mapping[str, float] | None = None
    ) -> dict[str, np.ndarray]:
        return cross_entropy(self, arrays, scalars or self.trial_scalars())

    def scalars(self) -> tuple[str, ...]:
        own = {"forward": ("lowest",), "count": (), "backward": ("scale", "smooth")}[self.direction]
        return (*own, "ignored") if self.ignoring else own
