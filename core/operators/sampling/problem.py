"""The problem of images that are sampled at given places."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from clgraft.core.operators.sampling.reference import grid_sample
from clgraft.core.problem import Argument, Problem, sample_argument
from clgraft.core.problem.text import DTYPE, Choice, Entry, Flag, Number, PerAxis

METHODS = ("nearest", "linear", "cubic")
PADDINGS = ("zeros", "border", "reflection")


@dataclass(frozen=True)
class GridSampleProblem(Problem):
    """``x grid -> y``: images at given places (Jaderberg et al. 2015, "Spatial transformer networks").

    Parameters
    ----------
    method : str
        ``nearest`` (halves to the even pixel), ``linear``, or ``cubic`` (Keys 1981, a = -0.75; two axes only).
    batch, channels : int
    in_size, out_size : tuple of int
        One to three spatial axes, outermost first. grid is (batch, *out_size, axes): for each output a place along each
        axis, innermost first, from -1 to 1.
    padding : str
        What lies outside of the image: ``zeros``, the ``border``'s pixels, or its ``reflection``.
    align_corners : bool
        Whether -1 and 1 are the middles of the first and last pixel; otherwise their outer edges.
    dtype : str

    Raises
    ------
    ProblemError
        If a size is out of range.
    """

    kind: ClassVar[str] = "gridsample"
    TEXT: ClassVar[tuple[Entry, ...]] = (
        Choice("method", METHODS, "linear", always=True),
        DTYPE,
        Number("n", "batch"),
        Number("c", "channels"),
        PerAxis("i", "in_size"),
        PerAxis("o", "out_size"),
        Choice("padding", PADDINGS, "zeros"),
        Flag("align_corners", "align_corners"),
    )
    examples: ClassVar[tuple[str, ...]] = (
        "linear n2 c3 ih5 iw7 oh4 ow6",
        "nearest n2 c3 ih5 iw7 oh4 ow6 border",
        "cubic n2 c3 ih5 iw7 oh4 ow6 reflection align_corners",
        "linear n1 c2 id3 ih4 iw5 od2 oh3 ow4",
    )

    method: str
    batch: int
    channels: int
    in_size: tuple[int, ...]
    out_size: tuple[int, ...]
    padding: str = "zeros"
    align_corners: bool = False
    dtype: str = "float32"

    def __post_init__(self) -> None:
        self._take_numbers("in_size", "out_size")
        for name in ("in_size", "out_size"):
            sizes = getattr(self, name)
            self._expect(all(1 <= size < 2**31 for size in sizes), name, sizes, "numbers from 1 on")
        self._take_counts(batch=0, channels=0)
        self._expect_words(method=METHODS, padding=PADDINGS)
        self._expect(1 <= self.ndim <= 3, "in_size", self.in_size, "1 to 3 spatial axes")
        self._expect(len(self.out_size) == self.ndim, "out_size", self.out_size, f"{self.ndim} numbers")

    @property
    def ndim(self) -> int:
        """Number of spatial axes."""
        return len(self.in_size)

    def arguments(self) -> tuple[Argument, ...]:
        return (
            Argument("x", "in", (self.batch, self.channels, *self.in_size), self.dtype),
            Argument("grid", "in", (self.batch, *self.out_size, self.ndim), self.dtype),
            Argument("y", "out", (self.batch, self.channels, *self.out_size), self.dtype),
        )

    @property
    def terms(self) -> int:
        """The pixels of an output."""
        return {"nearest": 1, "linear": 2, "cubic": 4}[self.method] ** self.ndim

    @property
    def operations(self) -> int:
        """Two for each pixel of an output."""
        return 2 * self.terms * self.arguments()[-1].size

    def sample(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        x, grid, _ = self.arguments()
        return {"x": sample_argument(x, rng), "grid": rng.uniform(-1.4, 1.4, grid.shape).astype(self.dtype)}

    def reference(
        self, arrays: Mapping[str, np.ndarray], scalars: Mapping[str, float] | None = None
    ) -> dict[str, np.ndarray]:
        return {"y": grid_sample(self, arrays)}
