"""The dropout problem: elements changed by random numbers that follow from a key, so that backward draws them again."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from clgraft.core.operators.dropout.reference import apply_random
from clgraft.core.problem import Argument, Gradient, Problem, sample_argument
from clgraft.core.problem.text import DTYPE, Choice, Entry, Numbers, direction_word

DIRECTIONS = ("forward", "backward")
OPERATORS = ("dropout", "rrelu")
KEY_WORDS = 4


@dataclass(frozen=True)
class DropoutProblem(Problem):
    """Dropout (Srivastava et al. 2014), or a rectifier with random slopes (Xu et al. 2015).

    Parameters
    ----------
    direction : str
        ``forward``: ``x key -> y``; ``backward``: ``dy key -> dx`` of dropout, ``x dy key -> dx`` of rrelu.
    operator : str
        ``dropout``: every element is multiplied by `scale` with the probability `keep`, else by 0 (NaN and infinity
        then give NaN). ``rrelu``: ``x > 0 ? x : slope x``, the slope uniform between `low` and `high`.
    shape : tuple of int
        Of every tensor.
    mask : tuple of int
        Of dropout: as `shape`, or with sizes of 1 along the axes whose elements share a random number. Empty: `shape`.
    dtype : str

    Notes
    -----
    ``key``: 4 words of int32: the seed's low and high half, the stream, the number of the draw. Numbers come from
    Philox 4x32-10 (Salmon et al. 2011) with 24 bits each, and depend on nothing but the key and the element's place.
    The scalars are ``keep scale`` or ``low high``.

    Raises
    ------
    ProblemError
        If the shapes do not fit.
    """

    kind: ClassVar[str] = "dropout"
    TEXT: ClassVar[tuple[Entry, ...]] = (
        direction_word(DIRECTIONS),
        Choice("operator", OPERATORS, "dropout"),
        DTYPE,
        Numbers("x", "shape"),
        Numbers("mask", "mask", "shape"),
    )
    directions: ClassVar[tuple[str, ...]] = DIRECTIONS
    examples: ClassVar[tuple[str, ...]] = ("x[3,5,7,11]", "x[3,5,7,11] mask[3,5,1,1]", "rrelu x[3,67]")
    usual_scalars: ClassVar[Mapping[str, float]] = {"keep": 0.9, "scale": 1 / 0.9, "low": 0.125, "high": 0.375}

    direction: str
    operator: str
    shape: tuple[int, ...]
    mask: tuple[int, ...] = ()
    dtype: str = "float32"

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(int(size) for size in self.shape))
        object.__setattr__(self, "mask", tuple(int(size) for size in self.mask) or self.shape)
        expect = self._expect
        self._expect_words(direction=DIRECTIONS, operator=OPERATORS)
        expect(all(size >= 0 for size in self.shape), "shape", self.shape, "sizes of at least 0")
        fits = len(self.mask) == len(self.shape) and all(m in (1, size) for m, size in zip(self.mask, self.shape))
        expect(fits, "mask", self.mask, f"the shape {self.shape} or sizes of 1")
        expect(self.operator == "dropout" or self.mask == self.shape, "mask", self.mask, f"{self.shape} for rrelu")

    def arguments(self) -> tuple[Argument, ...]:
        key = Argument("key", "in", (KEY_WORDS,), "int32")

        def tensor(name: str, role: str = "in") -> Argument:
            return Argument(name, role, self.shape, self.dtype)

        if self.direction == "forward":
            return tensor("x"), key, tensor("y", "out")
        first = (tensor("x"), tensor("dy")) if self.operator == "rrelu" else (tensor("dy"),)
        return (*first, key, tensor("dx", "out"))

    def gradients(self) -> tuple[Gradient, ...]:
        return (Gradient.of(self.with_direction("backward")),) if self.direction == "forward" else super().gradients()

    @property
    def operations(self) -> int:
        """About a hundred for each counter of four random numbers, and one for each element."""
        return 25 * math.prod(self.mask) + math.prod(self.shape)

    def sample(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Return inputs and a key."""
        given = {a.name: sample_argument(a, rng) for a in self.arguments() if a.role == "in" and a.name != "key"}
        key = rng.integers(-(2**31), 2**31, KEY_WORDS).astype(np.int32)
        return {a.name: given.get(a.name, key) for a in self.arguments() if a.role == "in"}

    def reference(
        self, arrays: Mapping[str, np.ndarray], scalars: Mapping[str, float] | None = None
    ) -> dict[str, np.ndarray]:
        return {self.arguments()[-1].name: apply_random(self, arrays, scalars or self.trial_scalars())}

    def scalars(self) -> tuple[str, ...]:
        return ("keep", "scale") if self.operator == "dropout" else ("low", "high")
