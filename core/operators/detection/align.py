"""The problem of regions of interest that become images of one size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from clgraft.core.operators.detection.reference import align, pooled
from clgraft.core.problem import Argument, Problem, sample_argument
from clgraft.core.problem.text import DTYPE, Choice, Entry, Flag, Number, PerAxis

OPERATORS = ("average", "max", "pixels")


@dataclass(frozen=True)
class RoiAlignProblem(Problem):
    """``x rois image -> y``: regions of images as images of one size (He et al. 2017, "Mask R-CNN").

    Parameters
    ----------
    operator : str
        What becomes of the samples of an output pixel: ``average``, or ``max`` of all weighted pixels around them.
        ``pixels``: no samples, but the largest of the pixels in its part of the region, whose corners are rounded to
        pixels, half a pixel away from 0; 0 where there is none (Girshick 2015, "Fast R-CNN").
    batch, channels : int
    in_size : tuple of int
        x is (batch, channels, height, width).
    regions : int
        rois is (regions, 4): left, top, right, bottom; image (regions) is int32, from 0 to batch - 1.
    out_size : tuple of int
        y is (regions, channels, height, width).
    samples : int
        Samples of a pixel along each axis; 0: as many as the pixel covers of x, rounded up.
    half_pixel : bool
        Whether the middle of the first pixel lies at 1/2; otherwise at 0, and regions are at least one pixel large.
    dtype : str

    Notes
    -----
    Scalar ``scale`` multiplies the regions. A region of an image that does not exist gives 0.

    Raises
    ------
    ProblemError
        If a size is out of range.
    """

    kind: ClassVar[str] = "roialign"
    TEXT: ClassVar[tuple[Entry, ...]] = (
        Choice("operator", OPERATORS, "average", always=True),
        DTYPE,
        Number("n", "batch"),
        Number("c", "channels"),
        PerAxis("i", "in_size"),
        Number("r", "regions"),
        PerAxis("o", "out_size"),
        Number("samples", "samples", 0, always=True),
        Flag("half_pixel", "half_pixel"),
    )
    examples: ClassVar[tuple[str, ...]] = (
        "average n2 c3 ih9 iw11 r5 oh3 ow4 samples2",
        "max n2 c3 ih9 iw11 r5 oh3 ow4 half_pixel",
    )
    usual_scalars: ClassVar[Mapping[str, float]] = {"scale": 1.0}

    operator: str
    batch: int
    channels: int
    in_size: tuple[int, ...]
    regions: int
    out_size: tuple[int, ...]
    samples: int = 0
    half_pixel: bool = False
    dtype: str = "float32"

    def __post_init__(self) -> None:
        self._take_numbers("in_size", "out_size")
        for name in ("in_size", "out_size"):
            sizes = getattr(self, name)
            good = len(sizes) == 2 and all(1 <= size < 2**31 for size in sizes)
            self._expect(good, name, sizes, "two numbers from 1 on")
        self._take_counts(batch=0, channels=0, regions=0, samples=0)
        self._expect_words(operator=OPERATORS)
        if self.operator == "pixels":
            given = self.samples, self.half_pixel
            self._expect(given == (0, False), "samples, half_pixel", given, "neither for pixels")

    def arguments(self) -> tuple[Argument, ...]:
        return (
            Argument("x", "in", (self.batch, self.channels, *self.in_size), self.dtype),
            Argument("rois", "in", (self.regions, 4), self.dtype),
            Argument("image", "in", (self.regions,), "int32"),
            Argument("y", "out", (self.regions, self.channels, *self.out_size), self.dtype),
        )

    def scalars(self) -> tuple[str, ...]:
        return ("scale",)

    @property
    def terms(self) -> int:
        """The pixels of about four samples."""
        return 4 * (self.samples or 2) ** 2

    def sample(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        height, width = self.in_size
        corner = rng.uniform(-1, 1, (self.regions, 2)) * 0.5 * np.array([width, height])
        far = corner + rng.uniform(0.1, 1, (self.regions, 2)) * np.array([width, height])
        rois = np.concatenate([corner, far], 1).astype(self.dtype)
        image = rng.integers(0, max(self.batch, 1), self.regions).astype(np.int32)
        return {"x": sample_argument(self.arguments()[0], rng), "rois": rois, "image": image}

    def reference(
        self, arrays: Mapping[str, np.ndarray], scalars: Mapping[str, float] | None = None
    ) -> dict[str, np.ndarray]:
        find = pooled if self.operator == "pixels" else align
        return {"y": find(self, arrays, (scalars or self.trial_scalars())["scale"])}
