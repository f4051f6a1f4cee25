"""The slice problem: a box out of a tensor, and back into one: slices, crops, and padding with a constant."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from clgraft.core.operators.copying.boxes import Box, offset, steps
from clgraft.core.operators.copying.reference import slice_box
from clgraft.core.problem import DTYPES, Argument, Gradient, Problem, in_float64
from clgraft.core.problem.text import DTYPE, Entry, Numbers, direction_word

DIRECTIONS = ("forward", "backward")


@dataclass(frozen=True)
class SliceProblem(Problem):
    """A box of x that begins at `begin`.

    Parameters
    ----------
    direction : str
        ``forward``: ``x -> y``; ``backward``: ``dy -> dx``, the scalar ``value`` outside of the box: 0 for the
        gradient, any number for padding, which is this direction's forward use.
    in_shape, out_shape : tuple of int
        Of x and y.
    begin : tuple of int
        Where y begins in x.
    dtype : str
    step : tuple of int
        From element to element of y in x, negative backwards; empty: 1. With other steps ``value`` has to be 0.

    Raises
    ------
    ProblemError
        If the box does not lie in the tensor.
    """

    kind: ClassVar[str] = "slice"
    TEXT: ClassVar[tuple[Entry, ...]] = (
        direction_word(DIRECTIONS),
        DTYPE,
        Numbers("x", "in_shape"),
        Numbers("y", "out_shape"),
        Numbers("at", "begin"),
        Numbers("step", "step", 1),
    )
    directions: ClassVar[tuple[str, ...]] = DIRECTIONS
    examples: ClassVar[tuple[str, ...]] = (
        "x[2,3,9,11] y[2,3,7,8] at[0,0,1,2]",
        "x[5,7,9] y[3,2,3] at[0,6,1] step[2,-3,3]",
    )
    usual_scalars: ClassVar[Mapping[str, float]] = {"value": 0.0}

    direction: str
    in_shape: tuple[int, ...]
    out_shape: tuple[int, ...]
    begin: tuple[int, ...]
    dtype: str = "float32"
    step: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "step", tuple(self.step) or (1,) * len(self.in_shape))
        self._take_numbers("in_shape", "out_shape", "begin", "step")
        ndim = len(self.in_shape)
        self._expect(self.direction in DIRECTIONS, "direction", repr(self.direction), f"one of {DIRECTIONS}")
        self._expect(self.dtype in DTYPES, "dtype", repr(self.dtype), f"one of {DTYPES}")
        self._expect(all(size >= 0 for size in self.in_shape), "x", self.in_shape, "sizes of at least 0")
        for name, value in (("y", self.out_shape), ("at", self.begin), ("step", self.step)):
            self._expect(len(value) == ndim, name, value, f"{ndim} numbers, as many as x {self.in_shape}")
        self._expect(0 not in self.step, "step", self.step, "numbers other than 0")
        bounds = zip(self.in_shape, self.out_shape, self.begin, self.step)
        inside = all(o >= 0 and 0 <= b <= i and (o == 0 or 0 <= b + (o - 1) * s < i) for i, o, b, s in bounds)
        self._expect(inside, "y", f"{self.out_shape} at {self.begin}", f"a box inside x {self.in_shape}")

    def arguments(self) -> tuple[Argument, ...]:
        if self.direction == "forward":
            return Argument("x", "in", self.in_shape, self.dtype), Argument("y", "out", self.out_shape, self.dtype)
        return Argument("dy", "in", self.out_shape, self.dtype), Argument("dx", "out", self.in_shape, self.dtype)

    def scalars(self) -> tuple[str, ...]:
        return () if self.direction == "forward" else ("value",)

    def gradients(self) -> tuple[Gradient, ...]:
        if self.direction == "forward":
            return (Gradient.of(self.with_direction("backward"), scalars={"value": 0.0}),)
        # padding with a constant: its gradient is the box
        return (Gradient.of(self.with_direction("forward"), {"x": "ddx", "y": "ddy"}),)

    @property
    def operations(self) -> int:
        """None: elements only move."""
        return 0

    @property
    def nbytes(self) -> int:
        """Bytes that have to move at least; forward reads the box alone."""
        return 2 * self.arguments()[1].nbytes if self.direction == "forward" else super().nbytes

    def reference(
        self, arrays: Mapping[str, np.ndarray], scalars: Mapping[str, float] | None = None
    ) -> dict[str, np.ndarray]:
        value = (scalars or self.trial_scalars()).get("value", 0.0)
        return slice_box(self, in_float64(arrays), value)

    def boxes(self) -> list[Box]:
        """Return what is copied: the box and, backward, what lies before and after it along each axis."""
        whole, part, first = steps(self.in_shape), steps(self.out_shape), offset(self.begin, self.in_shape)
        strides = tuple(a * s for a, s in zip(whole, self.step))
        if self.direction == "forward":
            return [Box(self.out_shape, strides, part, first, 0, "x", "y")]
        boxes = [Box(self.out_shape, part, strides, 0, first, "dy", "dx")] if all(self.out_shape) else []
        if set(self.step) - {1}:  # what lies between is no box: all of it first
            return [Box(self.in_shape, (0,) * len(whole), whole, 0, 0, "", "dx"), *boxes]
        # axis by axis what is left: inside the box along the axes before it, all of it along those after it
        begin, shape = [0] * len(whole), list(self.in_shape)
        for axis, (at, size) in enumerate(zip(self.begin, self.out_shape)):
            for start, stop in ((0, at), (at + size, self.in_shape[axis])):
                begin[axis], shape[axis] = start, stop - start
                boxes.append(Box(tuple(shape), (0,) * len(whole), whole, 0, offset(begin, self.in_shape), "", "dx"))
            begin[axis], shape[axis] = at, size
        return [box for box in boxes if all(box.shape)]
