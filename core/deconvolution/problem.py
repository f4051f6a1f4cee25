"""The deconvolution problem: the shapes of transposed convolutions of 1-D to 3-D, and their text."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import ClassVar

from clgraft.core.conv.problem import DIRECTIONS, LARGEST, ConvProblem
from clgraft.core.errors import ProblemError
from clgraft.core.problem import DTYPES, WORD_OF_DTYPE, Argument, Problem
from clgraft.core.problem_words import AXES, read_words

# letter -> (field, least value, default per axis); None: must be given, and a pad_end is pad_begin by default
SPATIAL = {
    "i": ("in_size", 1, None),
    "k": ("kernel", 1, None),
    "s": ("stride", 1, 1),
    "p": ("pad_begin", 0, 0),
    "q": ("pad_end", 0, None),
    "a": ("adj", 0, 0),
    "d": ("dilate", 1, 1),
}
WORD = re.compile(r"(n|ic|oc|g|b|[ikspqad][dhw])(\d+)")
# a deconvolution's direction is the convolution's of which it is the transpose
TRANSPOSED = {
    "forward": "backward_data",
    "backward_data": "forward",
    "backward_filter": "backward_filter",
    "backward_bias": "backward_bias",
}


@dataclass(frozen=True)
class DeconvProblem(Problem):
    """One deconvolution (transposed convolution) in one direction.

    Parameters
    ----------
    direction : str
        ``forward``, ``backward_data``, ``backward_filter`` or ``backward_bias``.
    batch, in_channels, out_channels, groups : int
        Counts; both channel counts are of all groups together. The weights are (in_channels, out_channels / groups,
        kernel...).
    in_size, kernel, stride, pad_begin, pad_end, adj, dilate : tuple of int
        One number per spatial axis, outermost first. Padding is taken away from the output, `adj` adds to its end.
        Empty ones mean 1 (`stride`, `dilate`), 0 (`pad_begin`, `adj`) and `pad_begin` (`pad_end`).
    bias : bool
        Whether the forward direction adds a bias.
    dtype : str
        ``float32``, ``float16`` (storage) or ``float64``.

    Raises
    ------
    ProblemError
        If the numbers describe no deconvolution.
    """

    kind: ClassVar[str] = "deconv"

    direction: str
    batch: int
    in_channels: int
    out_channels: int
    in_size: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...] = ()
    pad_begin: tuple[int, ...] = ()
    pad_end: tuple[int, ...] = ()
    adj: tuple[int, ...] = ()
    dilate: tuple[int, ...] = ()
    groups: int = 1
    bias: bool = False
    dtype: str = "float32"

    def __post_init__(self) -> None:
        ndim = len(self.in_size)
        for name, _, default in SPATIAL.values():
            usual = (default,) * ndim if default is not None else self.pad_begin if name == "pad_end" else ()
            object.__setattr__(self, name, tuple(int(v) for v in getattr(self, name) or usual))
        for name in ("batch", "in_channels", "out_channels", "groups"):
            object.__setattr__(self, name, int(getattr(self, name)))
        object.__setattr__(self, "bias", bool(self.bias) and self.direction == "forward")
        self._check(ndim)

    def _check(self, ndim: int) -> None:
        def expect(good: bool, name: str, got: object, expected: str) -> None:
            if not good:
                raise ProblemError(f"[deconv] got {name} {got}, expected {expected}")

        expect(self.direction in DIRECTIONS, "direction", repr(self.direction), f"one of {DIRECTIONS}")
        expect(self.dtype in DTYPES, "dtype", repr(self.dtype), f"one of {DTYPES}")
        expect(1 <= ndim <= 3, "in_size", self.in_size, "1 to 3 spatial axes")
        for name, low, _ in SPATIAL.values():
            value = getattr(self, name)
            expect(len(value) == ndim, name, value, f"{ndim} numbers, as many as in_size {self.in_size}")
            expect(all(low <= v <= LARGEST for v in value), name, value, f"numbers from {low} to {LARGEST}")
        expect(0 <= self.batch <= LARGEST, "batch", self.batch, f"0 to {LARGEST}")
        expect(self.groups >= 1, "groups", self.groups, "at least 1")
        for name in ("in_channels", "out_channels"):
            value = getattr(self, name)
            expect(1 <= value <= LARGEST, name, value, f"1 to {LARGEST}")
            expect(value % self.groups == 0, name, value, f"a multiple of groups {self.groups}")
        for stride, adj, end in zip(self.stride, self.adj, self.pad_end):
            expect(adj - end < stride, "adj", self.adj, f"less than stride {self.stride} beyond pad_end {self.pad_end}")
        size = self.out_size
        expect(all(1 <= o <= LARGEST for o in size), "pad_begin", self.pad_begin, f"an output of 1 or more, not {size}")

    @property
    def ndim(self) -> int:
        """Number of spatial axes."""
        return len(self.in_size)

    @property
    def out_size(self) -> tuple[int, ...]:
        """Spatial size of the output: s (i - 1) + d (k - 1) + 1 - p - q + a."""
        return tuple(
            s * (i - 1) + d * (k - 1) + 1 - p - q + a
            for i, k, s, p, q, a, d in zip(
                self.in_size, self.kernel, self.stride, self.pad_begin, self.pad_end, self.adj, self.dilate
            )
        )

    @property
    def convolution(self) -> ConvProblem:
        """The convolution that this one transposes: from its output to its input, with the same weights."""
        return ConvProblem(
            direction=TRANSPOSED[self.direction],
            batch=self.batch,
            in_channels=self.out_channels,
            out_channels=self.in_channels,
            in_size=self.out_size,
            kernel=self.kernel,
            stride=self.stride,
            pad_begin=self.pad_begin,
            pad_end=tuple(max(q - a, 0) for q, a in zip(self.pad_end, self.adj)),
            dilate=self.dilate,
            groups=self.groups,
            dtype=self.dtype,
        )

    @property
    def flops(self) -> int:
        """Multiply-adds of the direct method, counted as two operations."""
        return self.convolution.flops

    def with_direction(self, direction: str) -> DeconvProblem:
        """Give the same deconvolution in another direction."""
        return replace(self, direction=direction)

    def arguments(self) -> tuple[Argument, ...]:
        x = (self.batch, self.in_channels, *self.in_size)
        w = (self.in_channels, self.out_channels // self.groups, *self.kernel)
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
        words += [f"n{self.batch}", f"ic{self.in_channels}", f"oc{self.out_channels}"]
        for letter, (name, _, default) in SPATIAL.items():
            usual = self.pad_begin if letter == "q" else (default,) * self.ndim
            words += [f"{letter}{a}{v}" for a, v, u in zip(axes, getattr(self, name), usual) if v != u]
        if self.bias:
            words.append("b1")
        return " ".join(words)

    @classmethod
    def from_text(cls, text: str) -> DeconvProblem:
        expected = "a direction, a dtype or a number such as 'kh3'"
        words = read_words(cls.kind, text, WORD, expected, {"direction": DIRECTIONS})
        axes = words.axes()
        sizes: dict[str, tuple[int, ...]] = {}
        for letter, (name, _, default) in SPATIAL.items():
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
