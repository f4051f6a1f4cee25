"""The convolution problem: shapes of 1-D to 3-D convolutions in all directions, and their text."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import ClassVar

from clgraft.core.errors import ProblemError
from clgraft.core.problem import DTYPES, WORD_OF_DTYPE, Argument, Problem
from clgraft.core.problem_words import AXES, read_words

DIRECTIONS = ("forward", "backward_data", "backward_filter", "backward_bias")

LARGEST = 2**31 - 1  # of any single number; sizes in elements and bytes are 64-bit
# letter -> (field, default per axis); None: must be given
SPATIAL = {
    "i": ("in_size", None),
    "k": ("kernel", None),
    "s": ("stride", 1),
    "p": ("pad_begin", 0),
    "q": ("pad_end", None),
    "d": ("dilate", 1),
}
WORD = re.compile(r"(n|ic|oc|g|b|[ikspqd][dhw])(\d+)")


@dataclass(frozen=True)
class ConvProblem(Problem):
    """One convolution in one direction.

    Parameters
    ----------
    direction : str
        ``forward``, ``backward_data``, ``backward_filter`` or ``backward_bias``.
    batch, in_channels, out_channels, groups : int
        Counts; both channel counts are of all groups together.
    in_size, kernel, stride, pad_begin, pad_end, dilate : tuple of int
        One number per spatial axis, outermost first. `dilate` is the distance of taps (1: dense).
        Empty `stride`, `pad_begin` and `dilate` mean 1, 0 and 1; an empty `pad_end` means `pad_begin`.
    bias : bool
        Whether the forward direction adds a bias.
    dtype : str
        ``float32``, ``float16`` (storage) or ``float64``.

    Raises
    ------
    ProblemError
        If the numbers describe no convolution.
    """

    kind: ClassVar[str] = "conv"

    direction: str
    batch: int
    in_channels: int
    out_channels: int
    in_size: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...] = ()
    pad_begin: tuple[int, ...] = ()
    pad_end: tuple[int, ...] = ()
    dilate: tuple[int, ...] = ()
    groups: int = 1
    bias: bool = False
    dtype: str = "float32"

    def __post_init__(self) -> None:
        ndim = len(self.in_size)

        def put(name: str, value: tuple[int, ...]) -> None:
            object.__setattr__(self, name, tuple(int(v) for v in value))

        put("in_size", self.in_size)
        put("kernel", self.kernel)
        put("stride", self.stride or (1,) * ndim)
        put("pad_begin", self.pad_begin or (0,) * ndim)
        put("pad_end", self.pad_end or self.pad_begin)
        put("dilate", self.dilate or (1,) * ndim)
        for name in ("batch", "in_channels", "out_channels", "groups"):
            object.__setattr__(self, name, int(getattr(self, name)))
        object.__setattr__(self, "bias", bool(self.bias) and self.direction == "forward")
        self._check(ndim)

    def _check(self, ndim: int) -> None:
        def expect(good: bool, name: str, got: object, expected: str) -> None:
            if not good:
                raise ProblemError(f"[conv] got {name} {got}, expected {expected}")

        expect(self.direction in DIRECTIONS, "direction", repr(self.direction), f"one of {DIRECTIONS}")
        expect(self.dtype in DTYPES, "dtype", repr(self.dtype), f"one of {DTYPES}")
        expect(1 <= ndim <= 3, "in_size", self.in_size, "1 to 3 spatial axes")
        for name, low in (
            ("kernel", 1),
            ("stride", 1),
            ("pad_begin", 0),
            ("pad_end", 0),
            ("dilate", 1),
            ("in_size", 0),
        ):
            value = getattr(self, name)
            expect(len(value) == ndim, name, value, f"{ndim} numbers, as many as in_size {self.in_size}")
            expect(all(low <= v <= LARGEST for v in value), name, value, f"numbers from {low} to {LARGEST}")
        expect(0 <= self.batch <= LARGEST, "batch", self.batch, f"0 to {LARGEST}")
        expect(self.groups >= 1, "groups", self.groups, "at least 1")
        for name in ("in_channels", "out_channels"):
            value = getattr(self, name)
            expect(1 <= value <= LARGEST, name, value, f"1 to {LARGEST}")
            expect(value % self.groups == 0, name, value, f"a multiple of groups {self.groups}")
        for axis in range(ndim):
            span = self.dilate[axis] * (self.kernel[axis] - 1) + 1
            padded = self.in_size[axis] + self.pad_begin[axis] + self.pad_end[axis]
            expect(
                span <= padded,
                "kernel",
                self.kernel,
                f"a dilated kernel (here {span} on axis {axis}) within the padded input ({padded})",
            )

    @property
    def ndim(self) -> int:
        """Number of spatial axes."""
        return len(self.in_size)

    @property
    def out_size(self) -> tuple[int, ...]:
        """Spatial size of the output: floor((i + p + q - d (k - 1) - 1) / s) + 1."""
        return tuple(
            (i + p + q - d * (k - 1) - 1) // s + 1
            for i, k, s, p, q, d in zip(
                self.in_size, self.kernel, self.stride, self.pad_begin, self.pad_end, self.dilate
            )
        )

    @property
    def depthwise(self) -> bool:
        """Whether every input channel has filters of its own."""
        return self.groups == self.in_channels

    @property
    def flops(self) -> int:
        """Multiply-adds of the direct method, counted as two operations."""
        count = 2 * self.batch * self.out_channels * (self.in_channels // self.groups)
        for size in self.out_size + self.kernel:
            count *= size
        return count

    def with_direction(self, direction: str) -> ConvProblem:
        """Give the same convolution in another direction."""
        return replace(self, direction=direction)

    def arguments(self) -> tuple[Argument, ...]:
        x = (self.batch, self.in_channels, *self.in_size)
        w = (self.out_channels, self.in_channels // self.groups, *self.kernel)
        y = (self.batch, self.out_channels, *self.out_size)
        b = (self.out_channels,)
        table = {
            "forward": (("x", "in", x), ("w", "in", w)) + ((("b", "in", b),) if self.bias else ()) + (("y", "out", y),),
            "backward_data": (("dy", "in", y), ("w", "in", w), ("dx", "out", x)),
            "backward_filter": (("x", "in", x), ("dy", "in", y), ("dw", "out", w)),
            "backward_bias": (("dy", "in", y), ("db", "out", b)),
        }
        return tuple(Argument(name, role, shape, self.dtype) for name, role, shape in table[self.direction])

    def __str__(self) -> str:
        axes = AXES[-self.ndim :]
        words = [self.kind, self.direction]
        if self.dtype != "float32":
            words.append(WORD_OF_DTYPE[self.dtype])
        if self.groups != 1:
            words.append(f"g{self.groups}")
        words.append(f"n{self.batch}")
        words.append(f"ic{self.in_channels}")
        words += [f"i{a}{v}" for a, v in zip(axes, self.in_size)]
        words.append(f"oc{self.out_channels}")
        words += [f"k{a}{v}" for a, v in zip(axes, self.kernel)]
        for letter in "spqd":
            name, default = SPATIAL[letter]
            usual = self.pad_begin if letter == "q" else (default,) * self.ndim
            words += [f"{letter}{a}{v}" for a, v, u in zip(axes, getattr(self, name), usual) if v != u]
        if self.bias:
            words.append("b1")
        return " ".join(words)

    @classmethod
    def from_text(cls, text: str) -> ConvProblem:
        expected = "a direction, a dtype or a number such as 'kh3'"
        words = read_words(cls.kind, text, WORD, expected, {"direction": DIRECTIONS})
        axes = words.axes()
        sizes: dict[str, tuple[int, ...]] = {}
        for letter, (name, default) in SPATIAL.items():
            usual = sizes["pad_begin"] if letter == "q" else (default,) * len(axes)
            sizes[name] = tuple(words.take(letter + axis, u) for axis, u in zip(axes, usual))
        problem = cls(
            direction=words.choices.get("direction", "forward"),
            dtype=words.dtype,
            batch=words.take("n"),
            in_channels=words.take("ic"),
            out_channels=words.take("oc"),
            groups=words.take("g", 1),
            bias=bool(words.take("b", 0)),
            **sizes,
        )
        words.expect_none_left(axes)
        return problem
