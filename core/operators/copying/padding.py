"""The problem of padding with what lies at the border: its last element, or its mirror image."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from clgraft.core.operators.copying.boxes import Box, offset, steps
from clgraft.core.operators.copying.reference import pad
from clgraft.core.problem import DTYPES, Argument, Gradient, Problem, in_float64
from clgraft.core.problem.text import DTYPE, Choice, Entry, Numbers, direction_word

DIRECTIONS = ("forward", "backward")
MODES = ("edge", "reflect")


class Piece(NamedTuple):
    """A part of an axis of y, and where its elements come from in x."""

    to: int
    start: int
    length: int
    step: int


@dataclass(frozen=True)
class PadProblem(Problem):
    """``x -> y``, or ``dy -> dx``; padding with a constant is `SliceProblem`.

    Parameters
    ----------
    direction : str
    mode : str
        ``edge``: the border's element; ``reflect``: the mirror image, without the border's element itself.
    shape : tuple of int
        Of x.
    before, behind : tuple of int
        Per axis; for ``reflect`` less than its size.
    dtype : str

    Raises
    ------
    ProblemError
        If the numbers do not fit.
    """

    kind: ClassVar[str] = "pad"
    TEXT: ClassVar[tuple[Entry, ...]] = (
        direction_word(DIRECTIONS),
        Choice("mode", MODES, always=True),
        DTYPE,
        Numbers("x", "shape"),
        Numbers("before", "before"),
        Numbers("behind", "behind"),
    )
    directions: ClassVar[tuple[str, ...]] = DIRECTIONS
    examples: ClassVar[tuple[str, ...]] = (
        "edge x[2,3,5,7] before[0,0,1,2] behind[0,0,2,3]",
        "reflect x[2,3,5,7] before[0,0,4,2] behind[0,0,2,6]",
    )

    direction: str
    mode: str
    shape: tuple[int, ...]
    before: tuple[int, ...]
    behind: tuple[int, ...]
    dtype: str = "float32"

    def __post_init__(self) -> None:
        self._take_numbers("shape", "before", "behind")
        for name, known in (("direction", DIRECTIONS), ("mode", MODES), ("dtype", DTYPES)):
            value = getattr(self, name)
            self._expect(value in known, name, repr(value), f"one of {known}")
        self._expect(all(size >= 0 for size in self.shape), "x", self.shape, "sizes of at least 0")
        for name in ("before", "behind"):
            value = getattr(self, name)
            good = len(value) == len(self.shape) and min(value, default=0) >= 0
            self._expect(good, name, value, f"{len(self.shape)} numbers of at least 0")
            fits = all(
                v == 0 or (v < size if self.mode == "reflect" else size > 0) for v, size in zip(value, self.shape)
            )
            self._expect(
                fits, name, value, f"less than x {self.shape}" if self.mode == "reflect" else "0 where x is empty"
            )

    @property
    def out_shape(self) -> tuple[int, ...]:
        """The shape of y."""
        return tuple(b + size + e for b, size, e in zip(self.before, self.shape, self.behind))

    def arguments(self) -> tuple[Argument, ...]:
        if self.direction == "forward":
            return Argument("x", "in", self.shape, self.dtype), Argument("y", "out", self.out_shape, self.dtype)
        return Argument("dy", "in", self.out_shape, self.dtype), Argument("dx", "out", self.shape, self.dtype)

    def pieces(self, axis: int) -> list[Piece]:
        """Return the parts of an axis, the middle one first."""
        b, size, e = self.before[axis], self.shape[axis], self.behind[axis]
        if self.mode == "edge":
            outer = [Piece(0, 0, b, 0), Piece(b + size, size - 1, e, 0)]
            if self.direction == "backward":  # these meet in one element of dx: one after the other
                outer = [Piece(p.to + i, p.start, 1, 1) for p in outer for i in range(p.length)]
        else:
            outer = [Piece(0, b, b, -1), Piece(b + size, size - 2, e, -1)]
        return [Piece(b, 0, size, 1), *(piece for piece in outer if piece.length)]

    def gradients(self) -> tuple[Gradient, ...]:
        return (Gradient.of(self.with_direction("backward")),) if self.direction == "forward" else super().gradients()

    @property
    def operations(self) -> int:
        """None forward: elements only move; backward one for each element of dy."""
        return 0 if self.direction == "forward" else math.prod(self.out_shape)

    @property
    def terms(self) -> int:
        """Backward, how many elements of dy come from one of x at most."""
        if self.direction == "forward":
            return 1
        if self.mode == "edge":
            return math.prod(1 + max(b, e) if s != 1 else 1 + b + e for b, e, s in self._sides())
        return math.prod(1 + (b > 0) + (e > 0) for b, e, _ in self._sides())

    def _sides(self) -> list[tuple[int, int, int]]:
        return list(zip(self.before, self.behind, self.shape))

    def reference(
        self, arrays: Mapping[str, np.ndarray], scalars: Mapping[str, float] | None = None
    ) -> dict[str, np.ndarray]:
        return pad(self, in_float64(arrays))

    def boxes(self) -> list[Box]:
        """Return what is copied, the inside first; backward, the other boxes are added to it."""
        inner, outer = steps(self.shape), steps(self.out_shape)
        boxes = []
        for pieces in itertools.product(*(self.pieces(axis) for axis in range(len(self.shape)))):
            shape = tuple(piece.length for piece in pieces)
            strides = tuple(piece.step * step for piece, step in zip(pieces, inner))
            start = offset([piece.start for piece in pieces], self.shape)
            to = offset([piece.to for piece in pieces], self.out_shape)
            if self.direction == "forward":
                boxes.append(Box(shape, strides, outer, start, to, "x", "y"))
            else:
                boxes.append(Box(shape, outer, strides, to, start, "dy", "dx", adds=bool(boxes)))
        return boxes
