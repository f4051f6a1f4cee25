"""The problem of a batch of matrix products."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from clgraft.core.problem import Argument, Gradient, Problem
from clgraft.core.problem.text import DTYPE, Entry, Flag, Number

LARGEST = 2**31 - 1
FLAGS = ("transposed_a", "transposed_b", "shared_b")


@dataclass(frozen=True)
class MatMulProblem(Problem):
    """``a b -> y``: y[n] = a[n] b[n] for each of a batch of matrices.

    Parameters
    ----------
    batch : int
    rows, inner, columns : int
        a is (batch, rows, inner), b (batch, inner, columns), y (batch, rows, columns).
    transposed_a, transposed_b : bool
        Whether a is (batch, inner, rows), or b (batch, columns, inner); not both.
    shared_b : bool
        Whether all products have the same b, without a batch; then a is not transposed.
    dtype : str
        ``float32``, ``float16`` or ``bfloat16`` (storage), or ``float64``.

    Raises
    ------
    ProblemError
        If the numbers describe no products.
    """

    kind: ClassVar[str] = "matmul"
    TEXT: ClassVar[tuple[Entry, ...]] = (
        DTYPE,
        Number("n", "batch"),
        Number("m", "rows"),
        Number("k", "inner"),
        Number("c", "columns"),
        *(Flag(flag, flag) for flag in FLAGS),
    )
    sizes: ClassVar[tuple[str, ...]] = ("n", "m", "k", "c")
    examples: ClassVar[tuple[str, ...]] = (
        "n3 m17 k33 c29",
        "n3 m17 k33 c29 transposed_a",
        "n3 m17 k33 c29 transposed_b",
        "n3 m17 k33 c29 shared_b",
    )

    batch: int
    rows: int
    inner: int
    columns: int
    transposed_a: bool = False
    transposed_b: bool = False
    shared_b: bool = False
    dtype: str = "float32"

    def __post_init__(self) -> None:
        self._take_counts(batch=0, rows=1, inner=1, columns=1)
        self._expect_words()
        for name in ("batch", "rows", "inner", "columns"):
            self._expect(getattr(self, name) <= LARGEST, name, getattr(self, name), f"at most {LARGEST}")
        alone = not (self.transposed_a and (self.transposed_b or self.shared_b))
        self._expect(alone, "transposed_a", self.transposed_a, "b neither transposed nor shared where a is transposed")

    def arguments(self) -> tuple[Argument, ...]:
        a = (self.inner, self.rows) if self.transposed_a else (self.rows, self.inner)
        b = (self.columns, self.inner) if self.transposed_b else (self.inner, self.columns)
        return (
            Argument("a", "in", (self.batch, *a), self.dtype),
            Argument("b", "in", b if self.shared_b else (self.batch, *b), self.dtype),
            Argument("y", "out", (self.batch, self.rows, self.columns), self.dtype),
        )

    def gradients(self) -> tuple[Gradient, ...]:
        n, m, k, c, dtype = self.batch, self.rows, self.inner, self.columns, self.dtype
        shared = self.shared_b
        if self.transposed_a:
            da = Gradient(MatMulProblem(n, k, c, m, False, True, False, dtype), {"a": "b", "b": "dy", "y": "da"})
        else:
            kind = MatMulProblem(n, m, c, k, False, not self.transposed_b, shared, dtype)
            da = Gradient(kind, {"a": "dy", "b": "b", "y": "da"})
        n, m = (1, n * m) if shared else (n, m)
        if self.transposed_b:
            db = Gradient(MatMulProblem(n, c, m, k, True, False, False, dtype), {"a": "dy", "b": "a", "y": "db"})
        else:
            kind = MatMulProblem(n, k, m, c, not self.transposed_a, False, False, dtype)
            db = Gradient(kind, {"a": "a", "b": "dy", "y": "db"})
        return da, db

    @property
    def operations(self) -> int:
        """Multiply-adds, counted as two operations."""
        return 2 * self.batch * self.rows * self.inner * self.columns

    @property
    def terms(self) -> int:
        """Number of products that one element of y sums."""
        return self.inner

    def reference(
        self, arrays: Mapping[str, np.ndarray], scalars: Mapping[str, float] | None = None
    ) -> dict[str, np.ndarray]:
        a, b = (np.asarray(arrays[name], np.float64) for name in "ab")
        a = a.swapaxes(-1, -2) if self.transposed_a else a
        b = b.swapaxes(-1, -2) if self.transposed_b else b
        return {"y": a @ b}
