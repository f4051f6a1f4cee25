"""The pooling problem: windows of 1-D to 3-D, both frameworks' rules for the last window and for the divisor."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from clgraft.core.operators.pooling.reference import pool
from clgraft.core.problem import Argument, Gradient, Problem, ceil_div, in_float64
from clgraft.core.problem.layout import (
    FIRST,
    LAYOUT,
    LAYOUTS,
    channels_first,
    channels_last,
    laid_out,
    with_channels_first,
)
from clgraft.core.problem.text import DTYPE, Choice, Entry, Flag, Number, PerAxis, direction_word

DIRECTIONS = ("forward", "backward", "mask", "forward_argmax", "backward_argmax")
MOST_PLACES = 255  # places of a window whose argmax is a byte; 255 itself says that no place holds the maximum
OPERATORS = ("max", "average", "sum", "lp1", "lp2", "lp3")
NORMS = ("lp2", "lp3")  # their gradient is not the windows' own, divided or passed to one element
ROUNDINGS = ("floor", "ceil", "ceil_inside")

LARGEST = 2**31 - 1


@dataclass(frozen=True)
class PoolProblem(Problem):
    """Pooling over windows.

    Parameters
    ----------
    direction : str
        ``forward``: ``x -> y``; ``backward``: ``x y dy -> dx`` for the operators in `GRADIENT_READS_VALUES`, and else
        ``dy -> dx``; ``mask``: ``x y -> mask``, the place of each maximum in its plane (a whole number as `dtype`, so
        exact up to 2^24 elements in float32), -1 where a window holds nothing; ``forward_argmax``: ``x -> y argmax``,
        the place of each maximum in its window, row by row, in one byte, 255 where a window holds nothing;
        ``backward_argmax``: ``argmax dy -> dx``, the same bits as ``backward``.
    operator : str
        ``max``, ``average``, ``sum``, or ``lp1`` to ``lp3``: (sum x^p)^(1/p), without absolute values, as MXNet has it.
        A maximum starts from the dtype's lowest number; its gradient goes to the first of the window that equals it, in
        memory order. A window that holds nothing gives the lowest number, and else 0.
    batch, channels : int
    in_size, kernel, stride, pad_begin, pad_end : tuple of int
        One number per spatial axis, outermost first; empty ones mean 1 (stride), 0 (`pad_begin`), `pad_begin`
        (`pad_end`).
    rounding : str
        The number of windows: ``floor``: all lie within the padded input; ``ceil``: the last may reach beyond;
        ``ceil_inside``: as ``ceil``, but where there is padding the last window has to start before the end padding
        (Caffe's rule).
    count_padding : bool
        Whether an average divides by the window within the padded input, or by its part within the input.
    dtype : str
    layout : str
        ``nchw``, channels first, or ``nhwc``, channels last, for one to three spatial axes. The places of a mask do not
        depend on it.
    keep_nan : bool
        Whether a maximum is NaN where its window holds NaN, as in PyTorch, or NaN is never greater. A maximum that is
        NaN stands nowhere and has no gradient. Only forward directions of ``max`` have it.

    Raises
    ------
    ProblemError
        If the numbers describe no pooling.
    """

    kind: ClassVar[str] = "pool"
    TEXT: ClassVar[tuple[Entry, ...]] = (
        direction_word(DIRECTIONS),
        Choice("operator", OPERATORS, always=True),
        DTYPE,
        Number("n", "batch"),
        Number("c", "channels"),
        PerAxis("i", "in_size"),
        PerAxis("k", "kernel"),
        PerAxis("s", "stride", 1),
        PerAxis("p", "pad_begin", 0),
        PerAxis("q", "pad_end", "pad_begin"),
        Choice("rounding", ROUNDINGS, "floor"),
        Flag("count_inside", "count_padding", False),
        Flag("keep_nan", "keep_nan"),
        LAYOUT,
    )
    directions: ClassVar[tuple[str, ...]] = DIRECTIONS
    per_image: ClassVar[tuple[str, ...]] = ("forward",)
    sizes: ClassVar[tuple[str, ...]] = ("n", "c", "id", "ih", "iw")
    minor: ClassVar[tuple[str, ...]] = ("ph", "pw", "pd", "qh", "qw", "qd")
    # overlap, beyond the edge, one axis, averages, the whole image, sums, norms
    examples: ClassVar[tuple[str, ...]] = (
        "max n2 c5 ih11 iw13 kh3 kw3 sh2 sw2 ph1 pw1",
        "max n2 c3 ih9 iw8 kh2 kw2 sh2 sw2 ceil",
        "max n2 c7 iw29 kw3 pw1",
        "average n2 c5 ih9 iw11 kh3 kw3 ph1 pw1",
        "average n2 c5 ih10 iw12 kh3 kw3 sh2 sw2 ph1 pw1 count_inside",
        "average n2 c37 ih7 iw7 kh7 kw7",
        "sum n2 c3 ih8 iw8 kh2 kw3 sh2 sw1",
        "lp2 n2 c3 ih8 iw9 kh3 kw2 sh2 sw1",
        "max n2 c19 ih9 iw8 kh3 kw3 sh2 sw2 ph1 pw1 layout=nhwc",
        "average n2 c5 ih9 iw11 kh3 kw3 ph1 pw1 count_inside layout=nhwc",
    )
    GRADIENT_READS_VALUES: ClassVar[tuple[str, ...]] = ("max", "lp2", "lp3")

    direction: str
    operator: str
    batch: int
    channels: int
    in_size: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...] = ()
    pad_begin: tuple[int, ...] = ()
    pad_end: tuple[int, ...] = ()
    rounding: str = "floor"
    count_padding: bool = True
    dtype: str = "float32"
    layout: str = "nchw"
    keep_nan: bool = False

    def __post_init__(self) -> None:
        ndim = len(self.in_size)
        filled = {
            "in_size": self.in_size,
            "kernel": self.kernel,
            "stride": self.stride or (1,) * ndim,
            "pad_begin": self.pad_begin or (0,) * ndim,
            "pad_end": self.pad_end or self.pad_begin or (0,) * ndim,
        }
        for name, value in filled.items():
            object.__setattr__(self, name, tuple(int(v) for v in value))
        if self.operator != "average":
            object.__setattr__(self, "count_padding", True)  # has no meaning there: equal problems print equally
        if self.operator != "max" or not self.direction.startswith("forward"):
            object.__setattr__(self, "keep_nan", False)  # equal problems print equally, here too
        self._check(ndim)

    def _check(self, ndim: int) -> None:
        expect = self._expect
        self._expect_words(direction=DIRECTIONS, operator=OPERATORS, rounding=ROUNDINGS, layout=LAYOUTS)
        expect(self.direction != "mask" or self.operator == "max", "operator", self.operator, "max, which has a mask")
        if self.direction.endswith("_argmax"):
            expect(self.operator == "max", "operator", self.operator, "max, which has an argmax")
            known = self.layout == FIRST or ndim < 3
            expect(known, "in_size", self.in_size, "one or two axes for an argmax in channels last")
            places = math.prod(self.kernel)
            expect(places <= MOST_PLACES, "kernel", self.kernel, f"at most {MOST_PLACES} places, which a byte counts")
        expect(1 <= ndim <= 3, "in_size", self.in_size, "1 to 3 spatial axes")
        for name, low in (("in_size", 1), ("kernel", 1), ("stride", 1), ("pad_begin", 0), ("pad_end", 0)):
            value = getattr(self, name)
            expect(len(value) == ndim, name, value, f"{ndim} numbers, as many as in_size {self.in_size}")
            expect(all(low <= v <= LARGEST for v in value), name, value, f"numbers from {low} to {LARGEST}")
        expect(0 <= self.batch <= LARGEST, "batch", self.batch, f"0 to {LARGEST}")
        expect(0 <= self.channels <= LARGEST, "channels", self.channels, f"0 to {LARGEST}")
        for i, k, p, q, count in zip(self.in_size, self.kernel, self.pad_begin, self.pad_end, self.out_size):
            # Caffe lets the only window reach beyond
            fits = k <= i + p + q or (self.rounding == "ceil_inside" and count > 0)
            expect(fits, "kernel", self.kernel, f"at most the padded input ({i + p + q})")
            if self.operator in ("max", "average"):
                expect(p < k, "pad_begin", self.pad_begin, f"less than the kernel {self.kernel}")

    @property
    def ndim(self) -> int:
        """Number of spatial axes."""
        return len(self.in_size)

    @property
    def out_size(self) -> tuple[int, ...]:
        """Number of windows per axis."""
        sizes = []
        for i, k, s, p, q in zip(self.in_size, self.kernel, self.stride, self.pad_begin, self.pad_end):
            room = i + p + q - k
            count = (room if self.rounding == "floor" else room + s - 1) // s + 1
            padded = any(self.pad_begin) or any(self.pad_end)
            if self.rounding == "ceil_inside" and padded and (count - 1) * s >= i + p:
                count -= 1
            sizes.append(count)
        return tuple(sizes)

    @property
    def windows_are_input(self) -> bool:
        """Whether the one window of a plane is the whole input, without padding before it."""
        return self.kernel == self.in_size and not any(self.pad_begin)

    @property
    def keeps_argmax(self) -> bool:
        """Whether a gradient is faster from an argmax that forward keeps than from x and y.

        Windows that hold all of the input have few results, and are faster as whole planes: these count places where
        the windows are the input. In channels last those of CPU devices are no faster; graphs on other devices ask in
        channels first.
        """
        holds_all = all(k - p >= i for k, p, i in zip(self.kernel, self.pad_begin, self.in_size))
        counted = math.prod(self.kernel) <= MOST_PLACES and self.ndim < 3 and self.layout == FIRST
        return self.operator == "max" and counted and (self.windows_are_input or not holds_all)

    def arguments(self) -> tuple[Argument, ...]:
        x = laid_out(self.layout, self.batch, self.channels, self.in_size)
        y = laid_out(self.layout, self.batch, self.channels, self.out_size)
        if self.direction == "forward":
            table = [("x", "in", x), ("y", "out", y)]
        elif self.direction == "mask":
            table = [("x", "in", x), ("y", "in", y), ("mask", "out", y)]
        elif self.direction == "forward_argmax":
            table = [("x", "in", x), ("y", "out", y), ("argmax", "out", y)]
        elif self.direction == "backward_argmax":
            table = [("argmax", "in", y), ("dy", "in", y), ("dx", "out", x)]
        else:
            values = [("x", "in", x), ("y", "in", y)] if self.operator in self.GRADIENT_READS_VALUES else []
            table = [*values, ("dy", "in", y), ("dx", "out", x)]
        dtypes = {"argmax": "uint8"}
        return tuple(Argument(name, role, shape, dtypes.get(name, self.dtype)) for name, role, shape in table)

    def gradients(self) -> tuple[Gradient, ...]:
        if self.direction == "mask":
            return ()
        if not self.direction.startswith("forward"):
            return super().gradients()
        return (Gradient.of(self.with_direction(self.direction.replace("forward", "backward"))),)

    @property
    def operations(self) -> int:
        """One for each element of each window."""
        return self.batch * self.channels * math.prod(self.out_size) * math.prod(self.kernel)

    @property
    def terms(self) -> int:
        """The elements of a window; backward, the windows that hold an element."""
        if self.direction.startswith("backward"):
            return math.prod(ceil_div(k, s) for k, s in zip(self.kernel, self.stride))
        return math.prod(self.kernel)

    def sample(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Return inputs whose y belongs to their x; a maximum's few values make windows that hold it twice."""
        if self.layout != FIRST:
            first = replace(self, layout=FIRST).sample(rng)
            return {name: channels_last(array) for name, array in first.items()}
        shape = (self.batch, self.channels, *self.in_size)
        x = rng.integers(-3, 4, shape) if self.operator == "max" else rng.uniform(-1, 1.5, shape)
        given = {"x": x.astype(self.dtype)}
        if self.keep_nan:
            given["x"][rng.random(shape) < 0.05] = np.nan
        names = [argument.name for argument in self.arguments() if argument.role == "in"]
        if "y" in names:
            given["y"] = self.with_direction("forward").reference(given)["y"].astype(self.dtype)
        if "argmax" in names:
            given["argmax"] = self.with_direction("forward_argmax").reference(given)["argmax"]
        if "dy" in names:
            given["dy"] = rng.standard_normal((self.batch, self.channels, *self.out_size)).astype(self.dtype)
        return {name: given[name] for name in names}

    def reference(
        self, arrays: Mapping[str, np.ndarray], scalars: Mapping[str, float] | None = None
    ) -> dict[str, np.ndarray]:
        wide = in_float64(arrays)
        if self.direction == "forward_argmax":
            first = self.layout == FIRST
            given = wide if first else {name: channels_first(array) for name, array in wide.items()}
            found = pool(self if first else replace(self, layout=FIRST), given)
            return dict(zip(("y", "argmax"), found if first else map(channels_last, found)))
        return {self.arguments()[-1].name: with_channels_first(self, wide, lambda p, given: pool(p, given)[0])}
