"""The problem of boxes in the order of their scores, of which those that overlap a better one go."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from clgraft.core.operators.detection.reference import overlaps
from clgraft.core.problem import Argument, Gradient, Problem
from clgraft.core.problem.text import DTYPE, Entry, Flag, Number


@dataclass(frozen=True)
class OrderedSuppressionProblem(Problem):
    """``boxes valid [labels] -> y``: which boxes stay, from the first on, without those that overlap one that stays.

    Parameters
    ----------
    images, boxes : int
        boxes is (images, boxes, 4), valid and y (images, boxes): 1 or 0.
    labels : bool
        Whether only boxes with the same label (images, boxes) count.
    center : bool
        As of `NonMaxSuppressionProblem`.
    dtype : str

    Notes
    -----
    Scalar ``overlap`` is the largest allowed intersection over union. Boxes that are not valid go, and remove none.

    Raises
    ------
    ProblemError
        If a size is negative.
    """

    kind: ClassVar[str] = "suppress"
    TEXT: ClassVar[tuple[Entry, ...]] = (
        DTYPE,
        Number("n", "images"),
        Number("b", "boxes"),
        Flag("labels", "labels"),
        Flag("center", "center"),
    )
    examples: ClassVar[tuple[str, ...]] = ("n2 b37", "n3 b40 labels", "n1 b33 labels center")
    usual_scalars: ClassVar[Mapping[str, float]] = {"overlap": 0.3}

    images: int
    boxes: int
    labels: bool = False
    center: bool = False
    dtype: str = "float32"

    def __post_init__(self) -> None:
        self._take_counts(images=0, boxes=0)
        self._expect_words()
        self._expect(self.boxes < 2**31, "boxes", self.boxes, f"at most {2**31 - 1}")

    def arguments(self) -> tuple[Argument, ...]:
        line = (self.images, self.boxes)
        return (
            Argument("boxes", "in", (*line, 4), self.dtype),
            Argument("valid", "in", line, self.dtype),
            *((Argument("labels", "in", line, self.dtype),) if self.labels else ()),
            Argument("y", "out", line, self.dtype),
        )

    def scalars(self) -> tuple[str, ...]:
        return ("overlap",)

    def gradients(self) -> tuple[Gradient, ...]:
        return ()

    @property
    def operations(self) -> int:
        """About ten for every two boxes."""
        return 5 * self.images * self.boxes**2

    def sample(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        corner, size = rng.uniform(0, 1, (2, self.images, self.boxes, 2))
        size = size / 3 + 0.1
        boxes = np.concatenate([corner, size if self.center else corner + size], 2)
        line = (self.images, self.boxes)
        found = {"boxes": boxes, "valid": rng.integers(0, 5, line) > 0, "labels": rng.integers(0, 3, line)}
        return {a.name: found[a.name].astype(self.dtype) for a in self.arguments() if a.role == "in"}

    def reference(
        self, arrays: Mapping[str, np.ndarray], scalars: Mapping[str, float] | None = None
    ) -> dict[str, np.ndarray]:
        most = (scalars or self.trial_scalars())["overlap"]
        boxes, valid = (np.asarray(arrays[name], np.float64) for name in ("boxes", "valid"))
        labels = np.asarray(arrays["labels"]) if self.labels else np.zeros(valid.shape)
        y = np.zeros(valid.shape)
        for n in range(self.images):
            stays: list[int] = []
            for b in range(self.boxes):
                rivals = (s for s in stays if labels[n, s] == labels[n, b])
                if valid[n, b] and all(overlaps(boxes[n, b], boxes[n, s], self.center) <= most for s in rivals):
                    stays.append(b)
            y[n, stays] = 1
        return {"y": y}
