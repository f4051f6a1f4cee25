"""The problems of elements by their index: gather reads them, scatter writes them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from clgraft.core.operators.indexing.reference import gather, scatter
from clgraft.core.problem import WORD_OF_DTYPE, Argument, Gradient, Problem, sample_argument
from clgraft.core.problem.words import Words, read_words

SHARINGS = ("shared", "rows", "elements")
OPERATORS = ("set", "add", "mul", "max", "min")
WORD = re.compile(r"(outer|extent|inner|count)(\d+)")
EXPECTED = "a dtype, outer2, extent10, inner5, count7, or one of shared, rows and elements"


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

    def _text(self, *words: str) -> str:
        dtype = [] if self.dtype == "float32" else [WORD_OF_DTYPE[self.dtype]]
        sizes = [f"outer{self.outer}", f"extent{self.extent}", f"inner{self.inner}", f"count{self.count}"]
        return " ".join([self.kind, self.sharing, *words, *dtype, *sizes])


def _sizes(words: Words) -> tuple[int, ...]:
    return tuple(words.take(name) for name in ("outer", "extent", "inner", "count"))


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

    def __str__(self) -> str:
        return self._text()

    @classmethod
    def from_text(cls, text: str) -> GatherProblem:
        words = read_words(cls.kind, text, WORD, EXPECTED, {"sharing": SHARINGS})
        return cls(*_sizes(words), words.choices.get("sharing", "shared"), words.dtype)


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

    def __str__(self) -> str:
        return self._text(*([self.operator] if self.operator != "set" else []), *(["onto_zero"] * self.onto_zero))

    @classmethod
    def from_text(cls, text: str) -> ScatterProblem:
        choices = {"sharing": SHARINGS, "operator": OPERATORS}
        words = read_words(cls.kind, text, WORD, EXPECTED, choices, ("onto_zero",))
        chosen = (words.choices.get("sharing", "shared"), words.dtype, words.choices.get("operator", "set"))
        return cls(*_sizes(words), *chosen, "onto_zero" in words.flags)
