"""The concatenation problem: tensors joined along an axis, and the split that is its gradient."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from clgraft.core.operators.copying.boxes import Box, steps
from clgraft.core.operators.copying.reference import concatenate
from clgraft.core.problem import DTYPES, Argument, Gradient, Problem, in_float64
from clgraft.core.problem.text import DTYPE, Entry, Numbers, direction_word

DIRECTIONS = ("forward", "backward")


@dataclass(frozen=True)
class ConcatProblem(Problem):
    """Concatenation of (outer, extent, inner) along the middle axis.

    Parameters
    ----------
    direction : str
        ``forward``: ``x0 x1 ... -> y``; ``backward``: ``dy -> dx0 dx1 ...``, which is also a split.
    outer, inner : int
        The product of the sizes before and after the axis.
    extents : tuple of int
        Sizes along the axis, one per tensor; 0 is allowed.
    dtype : str

    Raises
    ------
    ProblemError
        If a number is negative or there is no tensor.
    """

    kind: ClassVar[str] = "concat"
    TEXT: ClassVar[tuple[Entry, ...]] = (
        direction_word(DIRECTIONS),
        DTYPE,
        Numbers("outer", "outer", single=True),
        Numbers("extents", "extents"),
        Numbers("inner", "inner", single=True),
    )
    directions: ClassVar[tuple[str, ...]] = DIRECTIONS
    examples: ClassVar[tuple[str, ...]] = ("outer[3] extents[4,1,7] inner[49]",)

    direction: str
    outer: int
    extents: tuple[int, ...]
    inner: int
    dtype: str = "float32"

    def __post_init__(self) -> None:
        object.__setattr__(self, "extents", tuple(int(size) for size in self.extents))
        self._expect(self.direction in DIRECTIONS, "direction", repr(self.direction), f"one of {DIRECTIONS}")
        self._expect(self.dtype in DTYPES, "dtype", repr(self.dtype), f"one of {DTYPES}")
        self._expect(len(self.extents) > 0, "extents", self.extents, "at least one")
        for name, sizes in (("outer", (self.outer,)), ("extents", self.extents), ("inner", (self.inner,))):
            self._expect(min(sizes) >= 0, name, sizes, "sizes of at least 0")

    @property
    def names(self) -> tuple[str, tuple[str, ...]]:
        """The names of the joined tensor and of its parts."""
        joined, part = ("y", "x") if self.direction == "forward" else ("dy", "dx")
        return joined, tuple(f"{part}{i}" for i in range(len(self.extents)))

    def arguments(self) -> tuple[Argument, ...]:
        whole, names = self.names
        roles = ("out", "in") if self.direction == "forward" else ("in", "out")
        joined = Argument(whole, roles[0], (self.outer, sum(self.extents), self.inner), self.dtype)
        parts = tuple(
            Argument(name, roles[1], (self.outer, extent, self.inner), self.dtype)
            for name, extent in zip(names, self.extents)
        )
        return (*parts, joined) if self.direction == "forward" else (joined, *parts)

    def part(self, count: int) -> ConcatProblem | None:
        return self._part_along("outer", count)

    def gradients(self) -> tuple[Gradient, ...]:
        if self.direction == "forward":
            return (Gradient.of(self.with_direction("backward")),)
        # a split: its gradient joins the parts' gradients
        forward = self.with_direction("forward")
        parts = {f"x{i}": f"ddx{i}" for i in range(len(self.extents))}
        return (Gradient.of(forward, {**parts, "y": "ddy"}),)

    @property
    def operations(self) -> int:
        """None: elements only move."""
        return 0

    def reference(
        self, arrays: Mapping[str, np.ndarray], scalars: Mapping[str, float] | None = None
    ) -> dict[str, np.ndarray]:
        return concatenate(self, in_float64(arrays))

    def boxes(self) -> list[Box]:
        """Return what is copied, one box per part."""
        whole, names = self.names
        joined = steps((self.outer, sum(self.extents), self.inner))
        boxes, begin = [], 0
        for name, extent in zip(names, self.extents):
            shape = (self.outer, extent, self.inner)
            if self.direction == "forward":
                boxes.append(Box(shape, steps(shape), joined, 0, begin * self.inner, name, whole))
            else:
                boxes.append(Box(shape, joined, steps(shape), begin * self.inner, 0, whole, name))
            begin += extent
        return boxes
