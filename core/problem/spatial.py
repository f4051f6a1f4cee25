"""What convolution and deconvolution problems share: numbers per spatial axis, channels, directions and their text."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, TypeVar

from clgraft.core.problem import layout
from clgraft.core.problem.base import Argument, Gradient, Problem
from clgraft.core.problem.text import DTYPE, Number, PerAxis, direction_word

DIRECTIONS = ("forward", "backward_data", "backward_filter", "backward_bias")
LARGEST = 2**31 - 1  # the largest single number; sizes in elements and bytes are 64-bit

Some = TypeVar("Some", bound="SpatialProblem")


class Field(NamedTuple):
    """A field of numbers per spatial axis: its least number, and what an empty one means.

    `default` is a number, or the name of the field to repeat; None: it must be given.
    """

    name: str
    least: int
    default: int | str | None = None


class SpatialProblem(Problem):
    """Base class: a subclass is a frozen dataclass of these fields and those that `SPATIAL` names.

    Attributes
    ----------
    SPATIAL : dict of str to Field
        By the letter of their words, in the order of the text; the input's size comes first.
    """

    directions: ClassVar[tuple[str, ...]] = DIRECTIONS
    per_image: ClassVar[tuple[str, ...]] = ("forward",)
    apart: ClassVar[bool] = True
    sizes: ClassVar[tuple[str, ...]] = ("n", "ic", "oc", "id", "ih", "iw")
    minor: ClassVar[tuple[str, ...]] = ("ph", "pw", "pd", "qh", "qw", "qd", "b")
    SPATIAL: ClassVar[Mapping[str, Field]]

    direction: str
    batch: int
    in_channels: int
    out_channels: int
    in_size: tuple[int, ...]
    kernel: tuple[int, ...]
    groups: int
    bias: bool
    layout: str

    def __init_subclass__(cls, **kw: Any) -> None:
        spatial = [PerAxis(letter, field.name, field.default) for letter, field in cls.SPATIAL.items()]
        cls.TEXT = (
            direction_word(DIRECTIONS),
            DTYPE,
            Number("g", "groups", 1),
            Number("n", "batch"),
            Number("ic", "in_channels"),
            spatial[0],
            Number("oc", "out_channels"),
            *spatial[1:],
            Number("b", "bias", 0),
            layout.LAYOUT,
        )
        super().__init_subclass__(**kw)

    def __post_init__(self) -> None:
        for field in self.SPATIAL.values():
            value = getattr(self, field.name) or self._usual(field)
            object.__setattr__(self, field.name, tuple(int(v) for v in value))
        for name in ("batch", "in_channels", "out_channels", "groups"):
            object.__setattr__(self, name, int(getattr(self, name)))
        object.__setattr__(self, "bias", bool(self.bias) and self.direction == "forward")
        self._check()
        self._check_sizes()

    def _usual(self, field: Field) -> tuple[int, ...]:
        if isinstance(field.default, str):
            usual: tuple[int, ...] = getattr(self, field.default)
            return usual
        return () if field.default is None else (field.default,) * self.ndim

    def _check(self) -> None:
        expect = self._expect
        self._expect_words(direction=DIRECTIONS, layout=layout.LAYOUTS)
        expect(1 <= self.ndim <= 3, "in_size", self.in_size, "1 to 3 spatial axes")
        for name, least, _ in self.SPATIAL.values():
            value = getattr(self, name)
            expect(len(value) == self.ndim, name, value, f"{self.ndim} numbers, as many as in_size {self.in_size}")
            expect(all(least <= v <= LARGEST for v in value), name, value, f"numbers from {least} to {LARGEST}")
        expect(0 <= self.batch <= LARGEST, "batch", self.batch, f"0 to {LARGEST}")
        expect(self.groups >= 1, "groups", self.groups, "at least 1")
        for name in ("in_channels", "out_channels"):
            channels = getattr(self, name)
            expect(1 <= channels <= LARGEST, name, channels, f"1 to {LARGEST}")
            expect(channels % self.groups == 0, name, channels, f"a multiple of groups {self.groups}")

    def _check_sizes(self) -> None:
        """Refuse numbers that are good each by itself but not together."""
        raise NotImplementedError

    @property
    def ndim(self) -> int:
        """Number of spatial axes."""
        return len(self.in_size)

    @property
    def out_size(self) -> tuple[int, ...]:
        """Spatial size of the output."""
        raise NotImplementedError

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """Shape of the weights."""
        raise NotImplementedError

    @property
    def flops(self) -> int:
        """Multiply-adds of the direct method, counted as two operations."""
        raise NotImplementedError

    @property
    def operations(self) -> int:
        """As `flops`; the gradient of the bias adds up dy."""
        if self.direction == "backward_bias":
            return self.batch * self.out_channels * math.prod(self.out_size)
        return self.flops

    def gradients(self) -> tuple[Gradient, ...]:
        if self.direction != "forward":
            return super().gradients()
        directions = ("backward_data", "backward_filter", *(("backward_bias",) if self.bias else ()))
        return tuple(Gradient.of(self.with_direction(direction)) for direction in directions)

    def arguments(self) -> tuple[Argument, ...]:
        x = layout.laid_out(self.layout, self.batch, self.in_channels, self.in_size)
        y = layout.laid_out(self.layout, self.batch, self.out_channels, self.out_size)
        return self._weighted(self.weight_shape, x, y, self.out_channels, self.bias)
