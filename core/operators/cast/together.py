"""The problem of several arrays of real numbers that become another type, and may be transposed, together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from clgraft.core.operators.cast.problem import WORDS
from clgraft.core.problem import SMALL, Argument, Problem, expect_in_numpy
from clgraft.core.problem.text import Choice, Entry, Numbers

TYPES = ("float32", *SMALL)
MOST_ARRAYS = 12  # of a problem, which is one launch then


@dataclass(frozen=True)
class CastsProblem(Problem):
    """``x0 x1 ... -> y0 y1 ...``: arrays of matrices in another type, each matrix transposed.

    A matrix of one row or one column lies in memory as its transpose does: it only changes its type.

    Parameters
    ----------
    source, target : str
        ``float32``, ``float16`` or ``bfloat16``; they may be equal.
    outer, rows, columns : tuple of int
        For each array the number of its matrices and their sizes: xi is (outer, rows, columns), yi (outer, columns,
        rows).

    Notes
    -----
    Numbers are rounded to the nearest one.

    Raises
    ------
    ProblemError
        If a type is unknown, there is no array, or the sizes are not as many.
    """

    kind: ClassVar[str] = "casts"
    TEXT: ClassVar[tuple[Entry, ...]] = (
        Choice("source", {f"from_{word}": dtype for word, dtype in WORDS.items() if dtype in TYPES}),
        Choice("target", {f"to_{word}": dtype for word, dtype in WORDS.items() if dtype in TYPES}),
        Numbers("outer", "outer"),
        Numbers("rows", "rows"),
        Numbers("columns", "columns"),
    )
    examples: ClassVar[tuple[str, ...]] = (
        "from_f32 to_f16 outer[1,8,3] rows[1,5,64] columns[1003,9,1]",
        "from_f16 to_f32 outer[2,1] rows[9,70] columns[33,65]",
        "from_f32 to_bf16 outer[1,4] rows[1,3] columns[77,49]",
    )

    source: str
    target: str
    outer: tuple[int, ...]
    rows: tuple[int, ...]
    columns: tuple[int, ...]

    def __post_init__(self) -> None:
        self._take_numbers("outer", "rows", "columns")
        for name in ("source", "target"):
            value = getattr(self, name)
            self._expect(value in TYPES, name, repr(value), f"one of {TYPES}")
            expect_in_numpy(self.kind, value)
        count = len(self.outer)
        self._expect(count > 0, "outer", self.outer, "at least one number")
        for name in ("outer", "rows", "columns"):
            sizes = getattr(self, name)
            good = len(sizes) == count and min(sizes) >= 0
            self._expect(good, name, sizes, f"{count} sizes of at least 0")

    @property
    def dtype(self) -> str:  # type: ignore[override]
        """The type that a device needs."""
        return "float32"

    @property
    def sizes_of_arrays(self) -> tuple[tuple[int, int, int], ...]:
        """Matrices, rows and columns of each array."""
        return tuple(zip(self.outer, self.rows, self.columns))

    def arguments(self) -> tuple[Argument, ...]:
        sizes = list(enumerate(self.sizes_of_arrays))
        return (
            *(Argument(f"x{i}", "in", shape, self.source) for i, shape in sizes),
            *(Argument(f"y{i}", "out", (o, c, r), self.target) for i, (o, r, c) in sizes),
        )

    @property
    def terms(self) -> int:
        """None: nothing is added."""
        return 0

    def reference(
        self, arrays: Mapping[str, np.ndarray], scalars: Mapping[str, float] | None = None
    ) -> dict[str, np.ndarray]:
        found = {f"y{i}": np.asarray(arrays[f"x{i}"], np.float64) for i in range(len(self.outer))}
        return {name: np.ascontiguousarray(x.transpose(0, 2, 1)) for name, x in found.items()}
