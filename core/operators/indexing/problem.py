"""The problems of elements by their index: gather reads them, scatter writes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from clgraft.core.operators.indexing.reference import gather, scatter
from clgraft.core.problem import Argument, Gradient, Problem, sample_argument
from clgraft.core.problem.text import DTYPE, Choice, Entry, Flag, Number

SHARINGS = ("shared", "rows", "elements")
OPERATORS = ("set", "add", "mul", "max", "min")
SHARING = Choice("sharing", SHARINGS, "shared", always=True)
SIZES = tuple(Number(name, name) for name in ("outer", "extent", "inner", "count"))


@dataclass(frozen=True)
class _Indexed(Problem):
    """What both have in common: x is (outer, extent, inner), and an index per element, row or for all.

    Parameters
    ----------
    outer, extent, inner : int
        The sizes of x: its middle axis is indexed.
    count : int
        Number of indices along the axis.
    sharing : str
        Shape of the index: ``shared``: (count), the same for all rows; ``rows``: (outer, count);
        ``elements``: (outer, count, inner).
    dtype : str
    """

    outer: int
    extent: int
    inner: int
    count: int
    sharing: str = "shared"
    dtype: str = "float32"

    def _check(self) -> None:
        self._take_counts(outer=0, extent=0, inner=0, count=0)
        self._expect_words(sharing=SHARINGS)

    @property
    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """The shapes of x, of the index, and of what it stands for."""
        chosen = (self.outer, self.count, self.inner)
        index = {"shared": (self.count,), "rows": (self.outer, self.count)}.get(self.sharing, chosen)
        return (self.outer, self.extent, self.inner), index, chosen

    def sample(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        ends = max(self.extent, 1)
        return {
            a.name: rng.integers(-ends, ends, a.shape).astype(np.int32)
            if a.dtype == "int32"
            else sample_argument(a, rng)
            for a in self.arguments()
            if a.role != "out"
        }


@dataclass(frozen=True)
class GatherProblem(_Indexed):
    """``x index -> y``: y[o, j, i] = x[o, index of j, i].

    Notes
    -----
    The index is int32. A negative one counts from the end; one outside of the axis gives NaN.

    Raises
    ------
    ProblemError
        If a size is negative.
    """

    kind: ClassVar[str] = "gather"
    TEXT: ClassVar[tuple[Entry, ...]] = (
        SHARING,
        DTYPE,
        *SIZES,
    )
    examples: ClassVar[tuple[str, ...]] = (
        "shared outer3 extent10 inner7 count5",
        "rows outer3 extent10 inner7 count5",
        "elements outer3 extent10 inner7 count5",
    )

    def __post_init__(self) -> None:
        self._check()

    def arguments(self) -> tuple[Argument, ...]:
        x, index, y = self.shapes
        return (
            Argument("x", "in", x, self.dtype),
            Argument("index", "in", index, "int32"),
            Argument("y", "out", y, self.dtype),
        )

    def gradients(self) -> tuple[Gradient, ...]:
        sizes = (self.outer, self.extent, self.inner, self.count)
        problem = ScatterProblem(*sizes, sharing=self.sharing, dtype=self.dtype, operator="add", onto_zero=True)
        return (Gradient(problem, {"index": "index", "updates": "dy", "y": "dx"}),)

    @property
    def operations(self) -> int:
        """None: elements only move."""
        return 0

    @property
    def nbytes(self) -> int:
        """Bytes that have to move at least; x is read at chosen places only."""
        x, index, y = (argument.nbytes for argument in self.arguments())
        return min(x, y) + index + y

    def reference(
        self, arrays: Mapping[str, np.ndarray], scalars: Mapping[str, float] | None = None
    ) -> dict[str, np.ndarray]:
        return {"y": gather(self, arrays)}


@dataclass(frozen=True)
class ScatterProblem(_Indexed):
    """``x index updates -> y``: x, where y[o, index of j, i] then takes in updates[o, j, i], in the order of j.

    Parameters
    ----------
    operator : str
        What an element becomes: ``set``: the update; ``add``, ``mul``, ``max``, ``min``: of what was there and the
        update.
    onto_zero : bool
        Start from 0, without the argument x.

    Notes
    -----
    The index is int32. A negative one counts from the end; one outside of the axis changes nothing.

    Raises
    ------
    ProblemError
        If a size is negative or the operator unknown.
    """

    kind: ClassVar[str] = "scatter"
    TEXT: ClassVar[tuple[Entry, ...]] = (
        SHARING,
        Choice("operator", OPERATORS, "set"),
        Flag("onto_zero", "onto_zero"),
        DTYPE,
        *SIZES,
    )
    examples: ClassVar[tuple[str, ...]] = (
        "shared outer3 extent10 inner7 count5",
        "rows add outer3 extent10 inner7 count5",
        "elements max outer3 extent10 inner7 count5",
        "shared add onto_zero outer2 extent6 inner9 count11",
    )

    operator: str = "set"
    onto_zero: bool = False

    def __post_init__(self) -> None:
        self._check()
        self._expect_words(operator=OPERATORS)

    def arguments(self) -> tuple[Argument, ...]:
        x, index, updates = self.shapes
        return (
            *(() if self.onto_zero else (Argument("x", "in", x, self.dtype),)),
            Argument("index", "in", index, "int32"),
            Argument("updates", "in", updates, self.dtype),
            Argument("y", "out", x, self.dtype),
        )

    def gradients(self) -> tuple[Gradient, ...]:
        if self.operator != "add" or not self.onto_zero:
            return super().gradients()
        sizes = (self.outer, self.extent, self.inner, self.count)
        back = GatherProblem(*sizes, sharing=self.sharing, dtype=self.dtype)
        return (Gradient(back, {"x": "dy", "index": "index", "y": "dupdates"}),)

    @property
    def terms(self) -> int:
        """As many as one element can take in."""
        return self.count + 1

    def reference(
        self, arrays: Mapping[str, np.ndarray], scalars: Mapping[str, float] | None = None
    ) -> dict[str, np.ndarray]:
        return {"y": scatter(self, arrays)}
