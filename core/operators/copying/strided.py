"""Problems whose elements are read with steps: transposition, and repetition (nearest upsampling, tiles)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from clgraft.core.operators.copying.boxes import Box, steps
from clgraft.core.operators.copying.reference import repeat, transpose
from clgraft.core.operators.pointwise.problem import PointwiseProblem, Reduction
from clgraft.core.problem import DTYPES, Argument, Gradient, Problem, in_float64
from clgraft.core.problem.text import DTYPE, Entry, Flag, Numbers


@dataclass(frozen=True)
class TransposeProblem(Problem):
    """``x -> y``, whose axis i is axis ``axes[i]`` of x. The gradient is the transposition back.

    Parameters
    ----------
    shape : tuple of int
        Of x.
    axes : tuple of int
    dtype : str

    Raises
    ------
    ProblemError
        If `axes` is no permutation.
    """

    kind: ClassVar[str] = "transpose"
    TEXT: ClassVar[tuple[Entry, ...]] = (
        DTYPE,
        Numbers("x", "shape"),
        Numbers("axes", "axes"),
    )
    examples: ClassVar[tuple[str, ...]] = ("x[2,19,7,9] axes[0,2,3,1]", "x[3,17,37] axes[0,2,1]")

    shape: tuple[int, ...]
    axes: tuple[int, ...]
    dtype: str = "float32"

    def __post_init__(self) -> None:
        self._take_numbers("shape", "axes")
        self._expect(self.dtype in DTYPES, "dtype", repr(self.dtype), f"one of {DTYPES}")
        self._expect(all(size >= 0 for size in self.shape), "x", self.shape, "sizes of at least 0")
        known = list(range(len(self.shape)))
        self._expect(sorted(self.axes) == known, "axes", self.axes, f"each of {known} once")

    @property
    def out_shape(self) -> tuple[int, ...]:
        """The shape of y."""
        return tuple(self.shape[axis] for axis in self.axes)

    def back(self) -> TransposeProblem:
        """Return the transposition of the gradient."""
        return TransposeProblem(self.out_shape, tuple(self.axes.index(i) for i in range(len(self.axes))), self.dtype)

    def arguments(self) -> tuple[Argument, ...]:
        return Argument("x", "in", self.shape, self.dtype), Argument("y", "out", self.out_shape, self.dtype)

    def gradients(self) -> tuple[Gradient, ...]:
        return (Gradient.of(self.back(), {"x": "dy", "y": "dx"}),)

    @property
    def operations(self) -> int:
        """None: elements only move."""
        return 0

    def reference(
        self, arrays: Mapping[str, np.ndarray], scalars: Mapping[str, float] | None = None
    ) -> dict[str, np.ndarray]:
        return transpose(self, in_float64(arrays))

    def boxes(self) -> list[Box]:
        """Return what is copied, in the order of y."""
        x = steps(self.shape)
        return [Box(self.out_shape, tuple(x[a] for a in self.axes), steps(self.out_shape), 0, 0, "x", "y")]


@dataclass(frozen=True)
class RepeatProblem(Problem):
    """``x -> y``: x repeated along its axes. The gradient is a sum, a pointwise problem with a reduction.

    Parameters
    ----------
    shape : tuple of int
        Of x.
    times : tuple of int
        How often, per axis.
    whole : bool
        Whether the whole axis is repeated (``abab``: tiles) or each of its elements (``aabb``: nearest upsampling).
    dtype : str

    Raises
    ------
    ProblemError
        If there are not as many `times` as axes.
    """

    kind: ClassVar[str] = "repeat"
    TEXT: ClassVar[tuple[Entry, ...]] = (
        DTYPE,
        Numbers("x", "shape"),
        Numbers("times", "times"),
        Flag("whole", "whole"),
    )
    examples: ClassVar[tuple[str, ...]] = ("x[2,3,5,7] times[1,1,3,3]", "x[2,3,5] times[2,1,3] whole")

    shape: tuple[int, ...]
    times: tuple[int, ...]
    whole: bool = False
    dtype: str = "float32"

    def __post_init__(self) -> None:
        self._take_numbers("shape", "times")
        self._expect(self.dtype in DTYPES, "dtype", repr(self.dtype), f"one of {DTYPES}")
        self._expect(all(size >= 0 for size in self.shape), "x", self.shape, "sizes of at least 0")
        good = len(self.times) == len(self.shape) and all(time >= 0 for time in self.times)
        self._expect(good, "times", self.times, f"{len(self.shape)} numbers of at least 0")

    @property
    def out_shape(self) -> tuple[int, ...]:
        """The shape of y."""
        return tuple(size * time for size, time in zip(self.shape, self.times))

    def split_shape(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return y's shape with an axis of its own for each repetition, and x's, which broadcasts to it."""
        wide: list[int] = []
        narrow: list[int] = []
        for size, time in zip(self.shape, self.times):
            wide += [time, size] if self.whole else [size, time]
            narrow += [1, size] if self.whole else [size, 1]
        return tuple(wide), tuple(narrow)

    def arguments(self) -> tuple[Argument, ...]:
        return Argument("x", "in", self.shape, self.dtype), Argument("y", "out", self.out_shape, self.dtype)

    def gradients(self) -> tuple[Gradient, ...]:
        """Return the sum of dy over the repetitions, dy having an axis of its own for each of them."""
        wide, narrow = self.split_shape()
        total = PointwiseProblem((wide,), "y0 = x0;", (Reduction("sum", shape=narrow),), dtype=self.dtype)
        return (Gradient.of(total, {"x0": "dy", "y0": "dx"}),)

    @property
    def operations(self) -> int:
        """None: elements only move."""
        return 0

    def reference(
        self, arrays: Mapping[str, np.ndarray], scalars: Mapping[str, float] | None = None
    ) -> dict[str, np.ndarray]:
        return repeat(self, in_float64(arrays))

    def boxes(self) -> list[Box]:
        """Return what is copied: x with steps of 0 along the repetitions."""
        wide, narrow = self.split_shape()
        x_steps = tuple(0 if axis % 2 == (0 if self.whole else 1) else step for axis, step in enumerate(steps(narrow)))
        return [Box(wide, x_steps, steps(wide), 0, 0, "x", "y")]
