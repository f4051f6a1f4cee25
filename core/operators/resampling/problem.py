"""The problem of an axis whose new elements are weighted sums of a few old ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from clgraft.core.problem import Argument, Problem, sample_argument
from clgraft.core.problem.text import DTYPE, Entry, Number

SIZES = ("outer", "in", "out", "inner", "taps")


@dataclass(frozen=True)
class ResampleProblem(Problem):
    """``x index weight -> y``: y[o, j, i] = sum over t of weight[j, t] x[o, index[j, t], i].

    Parameters
    ----------
    outer, in_extent, out_extent, inner : int
        x is (outer, in_extent, inner), y (outer, out_extent, inner).
    taps : int
        Elements of a sum.
    dtype : str

    Notes
    -----
    The index is int32; one below 0 or beyond the axis adds nothing. An element of weight 0 is not read. The weights of
    float16 are float32. `clgraft.core.operators.resampling.filters` has the tables of usual filters.

    Raises
    ------
    ProblemError
        If a size is negative.
    """

    kind: ClassVar[str] = "resample"
    TEXT: ClassVar[tuple[Entry, ...]] = (
        DTYPE,
        Number("outer", "outer"),
        Number("in", "in_extent"),
        Number("out", "out_extent"),
        Number("inner", "inner"),
        Number("taps", "taps"),
    )
    examples: ClassVar[tuple[str, ...]] = ("outer3 in7 out11 inner5 taps4", "outer6 in12 out5 inner1 taps3")

    outer: int
    in_extent: int
    out_extent: int
    inner: int
    taps: int
    dtype: str = "float32"

    def __post_init__(self) -> None:
        self._take_counts(outer=0, in_extent=1, out_extent=0, inner=0, taps=1)
        self._expect_words()

    def arguments(self) -> tuple[Argument, ...]:
        table = (self.out_extent, self.taps)
        return (
            Argument("x", "in", (self.outer, self.in_extent, self.inner), self.dtype),
            Argument("index", "in", table, "int32"),
            Argument("weight", "in", table, "float64" if self.dtype == "float64" else "float32"),
            Argument("y", "out", (self.outer, self.out_extent, self.inner), self.dtype),
        )

    @property
    def operations(self) -> int:
        """A product and a sum for each tap."""
        return 2 * self.outer * self.out_extent * self.inner * self.taps

    @property
    def terms(self) -> int:
        """The taps."""
        return self.taps

    def sample(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        x, index, weight, _ = self.arguments()
        places = rng.integers(-1, self.in_extent + 1, index.shape).astype(np.int32)
        return {"x": sample_argument(x, rng), "index": places, "weight": sample_argument(weight, rng)}

    def reference(
        self, arrays: Mapping[str, np.ndarray], scalars: Mapping[str, float] | None = None
    ) -> dict[str, np.ndarray]:
        x, weight = (np.asarray(arrays[name], np.float64) for name in ("x", "weight"))
        index = np.asarray(arrays["index"]).astype(np.int64)
        inside = (index >= 0) & (index < self.in_extent)
        found = x[:, np.where(inside, index, 0)]  # outer, out, taps, inner
        used = (inside & (weight != 0))[None, :, :, None]
        return {"y": np.where(used, found * weight[None, :, :, None], 0).sum(2)}
