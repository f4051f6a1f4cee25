"""The problem of boxes that are chosen by their scores, without those that overlap a better one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from clgraft.core.operators.detection.reference import overlaps
from clgraft.core.problem import Argument, Gradient, Problem
from clgraft.core.problem.text import DTYPE, Entry, Flag, Number


@dataclass(frozen=True)
class NonMaxSuppressionProblem(Problem):
    """``boxes scores -> index count``: for each image and class, the best boxes that overlap no better one.

    Parameters
    ----------
    images, classes, boxes : int
        boxes is (images, boxes, 4), scores (images, classes, boxes).
    most : int
        Boxes of a class at most.
    center : bool
        Whether a box is (x of the centre, y of the centre, width, height) and not two opposite corners (y, x, y, x).
    dtype : str

    Notes
    -----
    Scalars: ``overlap``, the largest allowed intersection over union, and ``score``: only larger scores count. The
    index (int32) has rows of image, class and box, by image and class and from the best box on; only the first `count`
    rows hold boxes, the others 0. Of equal scores the first box comes first.

    Raises
    ------
    ProblemError
        If a size is negative.
    """

    kind: ClassVar[str] = "nms"
    TEXT: ClassVar[tuple[Entry, ...]] = (
        DTYPE,
        Number("n", "images"),
        Number("c", "classes"),
        Number("b", "boxes"),
        Number("most", "most"),
        Flag("center", "center"),
    )
    examples: ClassVar[tuple[str, ...]] = ("n2 c3 b20 most6", "n1 c2 b33 most40 center")
    usual_scalars: ClassVar[Mapping[str, float]] = {"overlap": 0.3, "score": 0.1}

    images: int
    classes: int
    boxes: int
    most: int
    center: bool = False
    dtype: str = "float32"

    def __post_init__(self) -> None:
        self._take_counts(images=0, classes=0, boxes=0, most=0)
        self._expect_words()
        self._expect(self.boxes < 2**31, "boxes", self.boxes, f"at most {2**31 - 1}")

    @property
    def rows(self) -> int:
        """Rows of the index."""
        return self.images * self.classes * min(self.most, self.boxes)

    def arguments(self) -> tuple[Argument, ...]:
        return (
            Argument("boxes", "in", (self.images, self.boxes, 4), self.dtype),
            Argument("scores", "in", (self.images, self.classes, self.boxes), self.dtype),
            Argument("index", "out", (self.rows, 3), "int32"),
            Argument("count", "out", (1,), "int32"),
        )

    def scalars(self) -> tuple[str, ...]:
        return ("overlap", "score")

    def gradients(self) -> tuple[Gradient, ...]:
        return ()

    @property
    def operations(self) -> int:
        """About ten for each box and each chosen one."""
        return 10 * self.rows * self.boxes

    def sample(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        corner, size = rng.uniform(0, 1, (2, self.images, self.boxes, 2))
        size = size / 3 + 0.1
        boxes = np.concatenate([corner, size if self.center else corner + size], 2)
        scores = rng.uniform(0, 1, (self.images, self.classes, self.boxes))
        return {"boxes": boxes.astype(self.dtype), "scores": scores.astype(self.dtype)}

    def reference(
        self, arrays: Mapping[str, np.ndarray], scalars: Mapping[str, float] | None = None
    ) -> dict[str, np.ndarray]:
        given = scalars or self.trial_scalars()
        found = []
        for image in range(self.images):
            boxes = np.asarray(arrays["boxes"], np.float64)[image]
            for kind in range(self.classes):
                scores = np.asarray(arrays["scores"], np.float64)[image, kind]
                chosen: list[int] = []
                for box in np.argsort(-scores, kind="stable"):
                    if len(chosen) == self.most or not scores[box] > given["score"]:
                        break
                    if all(overlaps(boxes[box], boxes[c], self.center) <= given["overlap"] for c in chosen):
                        chosen.append(int(box))
                found += [(image, kind, box) for box in chosen]
        index = np.zeros((self.rows, 3))
        index[: len(found)] = np.array(found).reshape(-1, 3)
        return {"index": index, "count": np.array([float(len(found))])}
