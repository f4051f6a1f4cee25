"""What convolution and deconvolution problems share: numbers per spatial axis, channels, directions and their text."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, TypeVar

from clgraft.core.problem import layout
from clgraft.core.problem.base import WORD_OF_DTYPE, Argument, Gradient, Problem
from clgraft.core.problem.words import AXES, read_words

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
        By the letter of their words, in the order of the text.
    """

    directions: ClassVar[tuple[str, ...]] = DIRECTIONS
    per_image: ClassVar[tuple[str, ...]] = ("forward",)
    apart: ClassVar[bool] = True
    sizes: ClassVar[tuple[str, ...]] = ("n", "ic", "oc", "id", "ih", "iw")
    minor: ClassVar[tuple[str, ...]] = ("ph", "pw", "pd", "qh", "qw", "qd", "b")
    SPATIAL: ClassVar[Mapping[str, Field]]
    _WORD: ClassVar[re.Pattern[str]]

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
        super().__init_subclass__(**kw)
        cls._WORD = re.compile(rf"(n|ic|oc|g|b|[{''.join(cls.SPATIAL)}][dhw])(\d+)")

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

    def __str__(self) -> str:
        words = [self.kind, self.direction]
        if self.dtype != "float32":
            words.append(WORD_OF_DTYPE[self.dtype])
        if self.groups != 1:
            words.append(f"g{self.groups}")
        words += [f"n{self.batch}", f"ic{self.in_channels}"]
        for letter, field in self.SPATIAL.items():
            if letter == "k":
                words.append(f"oc{self.out_channels}")
            usual = self._usual(field) or (None,) * self.ndim
            axes = zip(AXES[-self.ndim :], getattr(self, field.name), usual)
            words += [f"{letter}{axis}{value}" for axis, value, u in axes if value != u]
        if self.bias:
            words.append("b1")
        return " ".join([*words, *layout.layout_words(self.layout)])

    @classmethod
    def from_text(cls: type[Some], text: str) -> Some:
        expected = "a direction, a dtype or a number such as 'kh3'"
        words = read_words(
            cls.kind, text, cls._WORD, expected, {"direction": DIRECTIONS, "layout": tuple(layout.WORDS)}
        )
        axes = words.axes()
        sizes: dict[str, tuple[int, ...]] = {}
        for letter, (name, _, default) in cls.SPATIAL.items():
            usual = sizes[default] if isinstance(default, str) else (default,) * len(axes)
            sizes[name] = tuple(words.take(letter + axis, u) for axis, u in zip(axes, usual))
        problem = cls(
            direction=words.choices.get("direction", "forward"),
            dtype=words.dtype,
            batch=words.take("n"),
            in_channels=words.take("ic"),
            out_channels=words.take("oc"),
            groups=words.take("g", 1),
            bias=bool(words.take("b", 0)),
            layout=layout.read_layout(words.choices),
            **sizes,
        )  # type: ignore[call-arg]
        words.expect_none_left(axes)
        return problem
