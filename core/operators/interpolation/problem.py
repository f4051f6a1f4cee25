"""The interpolation problem: images resized to another number of pixels, nearest or linear, in both directions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from clgraft.core.operators.interpolation.reference import interpolate
from clgraft.core.problem import Argument, Gradient, Problem, ceil_div, in_float64
from clgraft.core.problem.text import DTYPE, Choice, Entry, Number, PerAxis, direction_word

DIRECTIONS = ("forward", "backward")
METHODS = ("nearest", "linear")
COORDINATES = ("half_pixel", "half_pixel_one", "align_corners", "asymmetric")
ROUNDINGS = ("prefer_floor", "prefer_ceil", "floor", "ceil")
LARGEST = 2**31 - 1


@dataclass(frozen=True)
class InterpolationProblem(Problem):
    """Interpolation of (batch, channels, in_size...) at out_size... places.

    Parameters
    ----------
    direction : str
        ``forward``: ``x -> y``; ``backward``: ``dy -> dx``.
    method : str
        ``nearest``, or ``linear`` along every axis (bilinear, trilinear). Places beyond the first and last pixel have
        these pixels' values.
    batch, channels : int
    in_size, out_size : tuple of int
        One number per spatial axis, outermost first.
    coordinates : str
        Where output o of an axis lies among its inputs: ``half_pixel``: (o + 1/2) in / out - 1/2; ``half_pixel_one``:
        the same, but 0 for a single output; ``align_corners``: o (in - 1) / (out - 1), and 0 for a single output;
        ``asymmetric``: o in / out.
    rounding : str
        Of ``nearest``: to the nearer pixel and halves to the lower (``prefer_floor``) or the upper one
        (``prefer_ceil``), or always ``floor`` or ``ceil``.
    dtype : str

    Notes
    -----
    Places are computed in whole numbers, without rounding errors. A pixel whose weight is 0 is not read. The gradient
    of a pixel adds up the outputs that read it, in memory order.

    Raises
    ------
    ProblemError
        If a number is out of range.
    """

    kind: ClassVar[str] = "interpolate"
    TEXT: ClassVar[tuple[Entry, ...]] = (
        direction_word(DIRECTIONS),
        Choice("method", METHODS, always=True),
        DTYPE,
        Number("n", "batch"),
        Number("c", "channels"),
        PerAxis("i", "in_size"),
        PerAxis("o", "out_size"),
        Choice("coordinates", COORDINATES, "half_pixel"),
        Choice("rounding", ROUNDINGS, "prefer_floor"),
    )
    directions: ClassVar[tuple[str, ...]] = DIRECTIONS
    sizes: ClassVar[tuple[str, ...]] = ("n", "c", "id", "ih", "iw", "od", "oh", "ow")
    examples: ClassVar[tuple[str, ...]] = (
        "linear n2 c5 ih7 iw9 oh15 ow18",
        "nearest n2 c5 ih7 iw9 oh14 ow27 asymmetric floor",
        "linear n2 c3 ih13 iw8 oh5 ow6 align_corners",
        "linear n1 c3 id4 ih5 iw6 od7 oh3 ow11",
    )

    direction: str
    method: str
    batch: int
    channels: int
    in_size: tuple[int, ...]
    out_size: tuple[int, ...]
    coordinates: str = "half_pixel"
    rounding: str = "prefer_floor"
    dtype: str = "float32"

    def __post_init__(self) -> None:
        self._take_numbers("in_size", "out_size")
        if self.method != "nearest":  # unused there: equal problems print equally
            object.__setattr__(self, "rounding", "prefer_floor")
        self._expect_words(direction=DIRECTIONS, method=METHODS, coordinates=COORDINATES, rounding=ROUNDINGS)
        self._take_counts(batch=0, channels=0)
        self._expect(1 <= self.ndim <= 3, "in_size", self.in_size, "1 to 3 spatial axes")
        self._expect(len(self.out_size) == self.ndim, "out_size", self.out_size, f"{self.ndim} numbers as in_size has")
        for name in ("in_size", "out_size"):
            sizes = getattr(self, name)
            self._expect(all(1 <= size <= LARGEST for size in sizes), name, sizes, f"numbers from 1 to {LARGEST}")

    @property
    def ndim(self) -> int:
        """Number of spatial axes."""
        return len(self.in_size)

    def arguments(self) -> tuple[Argument, ...]:
        x, y = (self.batch, self.channels, *self.in_size), (self.batch, self.channels, *self.out_size)
        table = (("x", x), ("y", y)) if self.direction == "forward" else (("dy", y), ("dx", x))
        (source, shape), (result, size) = table
        return Argument(source, "in", shape, self.dtype), Argument(result, "out", size, self.dtype)

    def gradients(self) -> tuple[Gradient, ...]:
        return (Gradient.of(self.with_direction("backward")),) if self.direction == "forward" else super().gradients()

    @property
    def operations(self) -> int:
        """Two for each pixel that an output reads."""
        pixels = self.batch * self.channels * math.prod(self.out_size)
        return 2 * pixels * 2**self.ndim if self.method == "linear" else pixels

    @property
    def terms(self) -> int:
        """The pixels of an output; backward, about the outputs of a pixel."""
        if self.direction == "forward":
            return 2**self.ndim if self.method == "linear" else 1
        reach = 2 if self.method == "linear" else 1
        return math.prod(ceil_div(reach * o, i) + 1 for i, o in zip(self.in_size, self.out_size))

    def reference(
        self, arrays: Mapping[str, np.ndarray], scalars: Mapping[str, float] | None = None
    ) -> dict[str, np.ndarray]:
        wide = in_float64(arrays)
        return {self.arguments()[-1].name: interpolate(self, wide)}
