"""The problem of the greatest or smallest elements of an axis, in their order, and where they stand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from clgraft.core.operators.indexing.problem import ScatterProblem
from clgraft.core.problem import Argument, Gradient, Problem
from clgraft.core.problem.text import DTYPE, Entry, Flag, Number

FLAGS = ("smallest", "last")


@dataclass(frozen=True)
class TopKProblem(Problem):
    """``x -> y index``: the k greatest elements of the middle axis, from the greatest on, and their indices.

    Parameters
    ----------
    outer, extent, inner : int
        The sizes of x.
    k : int
        From 1 to `extent`; 1 is the maximum with its place.
    smallest : bool
        The smallest elements instead, from the smallest on.
    last : bool
        Of equal elements the last comes first; otherwise the first.
    dtype : str

    Notes
    -----
    The index is int32. NaN comes before all numbers.

    Raises
    ------
    ProblemError
        If k is out of range.
    """

    kind: ClassVar[str] = "topk"
    TEXT: ClassVar[tuple[Entry, ...]] = (
        DTYPE,
        Number("outer", "outer"),
        Number("extent", "extent"),
        Number("inner", "inner"),
        Number("k", "k"),
        *(Flag(flag, flag) for flag in FLAGS),
    )
    examples: ClassVar[tuple[str, ...]] = (
        "outer3 extent37 inner1 k1",
        "outer2 extent29 inner5 k4 smallest",
        "outer2 extent40 inner3 k21 last",
    )

    outer: int
    extent: int
    inner: int
    k: int
    smallest: bool = False
    last: bool = False
    dtype: str = "float32"

    def __post_init__(self) -> None:
        self._take_counts(outer=0, extent=1, inner=0, k=1)
        self._expect_words()
        self._expect(self.extent < 2**31, "extent", self.extent, f"at most {2**31 - 1}")
        self._expect(self.k <= self.extent, "k", self.k, f"at most the extent {self.extent}")

    def arguments(self) -> tuple[Argument, ...]:
        y = (self.outer, self.k, self.inner)
        return (
            Argument("x", "in", (self.outer, self.extent, self.inner), self.dtype),
            Argument("y", "out", y, self.dtype),
            Argument("index", "out", y, "int32"),
        )

    def gradients(self) -> tuple[Gradient, ...]:
        sizes = (self.outer, self.extent, self.inner, self.k)
        back = ScatterProblem(*sizes, sharing="elements", dtype=self.dtype, operator="add", onto_zero=True)
        return (Gradient(back, {"index": "index", "updates": "dy", "y": "dx"}),)

    @property
    def operations(self) -> int:
        """A comparison for each element and each of the k."""
        return self.outer * self.extent * self.inner * self.k

    def reference(
        self, arrays: Mapping[str, np.ndarray], scalars: Mapping[str, float] | None = None
    ) -> dict[str, np.ndarray]:
        x = np.asarray(arrays["x"], np.float64)
        key = np.where(np.isnan(x), -np.inf, x if self.smallest else -x)
        if self.last:
            order = self.extent - 1 - np.argsort(key[:, ::-1], axis=1, kind="stable")
        else:
            order = np.argsort(key, axis=1, kind="stable")
        index = order[:, : self.k]
        return {"y": np.take_along_axis(x, index, 1), "index": index.astype(np.float64)}
