"""The convolution problem: shapes of 1-D to 3-D convolutions in all directions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from clgraft.core.operators.conv.reference import convolve
from clgraft.core.problem import in_float64
from clgraft.core.problem.layout import laid_out, with_channels_first
from clgraft.core.problem.spatial import DIRECTIONS, LARGEST, Field, SpatialProblem

__all__ = ["DIRECTIONS", "LARGEST", "ConvProblem"]


@dataclass(frozen=True)
class ConvProblem(SpatialProblem):
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
        ``float32``, ``float16`` or ``bfloat16`` (storage), or ``float64``.
    layout : str
        ``nchw``, channels first, or ``nhwc``, channels last, for one to three spatial axes; see `core.problem.layout`.

    Raises
    ------
    ProblemError
        If the numbers describe no convolution.
    """

    kind: ClassVar[str] = "conv"
    examples: ClassVar[tuple[str, ...]] = (
        "n2 ic5 ih9 iw11 oc7 kh3 kw3 ph1 pw1 b1",
        "n1 ic3 ih23 iw23 oc8 kh7 kw7 sh2 sw2 ph3 pw3 b1",
        "n2 ic16 ih7 iw7 oc32 kh1 kw1 b1",
        "n3 ic8 ih12 iw10 oc12 kh3 kw5 sh2 sw1 ph2 pw0 dh2 dw1 b1",
        "n2 g2 ic6 ih8 iw8 oc4 kh3 kw3 ph1 pw1 b1",
        "n2 g12 ic12 ih13 iw13 oc12 kh3 kw3 ph1 pw1 b1",
        "n1 g8 ic8 ih14 iw14 oc16 kh5 kw5 sh2 sw2 ph2 pw2 b1",
        "n2 ic4 iw31 oc6 kw3 pw1 b1",
        "n2 g2 ic6 ih8 iw9 oc10 kh3 kw3 sh2 sw1 ph1 pw1 b1 layout=nhwc",
        "n2 ic19 ih7 iw6 oc33 kh1 kw1 b1 layout=nhwc",
    )
    SPATIAL: ClassVar[Mapping[str, Field]] = {
        "i": Field("in_size", 0),
        "k": Field("kernel", 1),
        "s": Field("stride", 1, 1),
        "p": Field("pad_begin", 0, 0),
        "q": Field("pad_end", 0, "pad_begin"),
        "d": Field("dilate", 1, 1),
    }

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
    layout: str = "nchw"

    def _check_sizes(self) -> None:
        for axis in range(self.ndim):
            span = self.dilate[axis] * (self.kernel[axis] - 1) + 1
            padded = self.in_size[axis] + self.pad_begin[axis] + self.pad_end[axis]
            self._expect(
                span <= padded,
                "kernel",
                self.kernel,
                f"a dilated kernel (here {span} on axis {axis}) within the padded input ({padded})",
            )

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
    def weight_shape(self) -> tuple[int, ...]:
        """Shape of the weights: (out_channels, in_channels / groups, kernel...); in channels last these end it."""
        return laid_out(self.layout, self.out_channels, self.in_channels // self.groups, self.kernel)

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

    @property
    def terms(self) -> int:
        """Number of products that one element of the result sums."""
        if self.direction in ("backward_filter", "backward_bias"):
            return self.batch * math.prod(self.out_size)
        channels = self.in_channels if self.direction == "forward" else self.out_channels
        return channels // self.groups * math.prod(self.kernel)

    def reference(
        self, arrays: Mapping[str, np.ndarray], scalars: Mapping[str, float] | None = None
    ) -> dict[str, np.ndarray]:
        wide = in_float64(arrays)
        return {self.arguments()[-1].name: with_channels_first(self, wide, convolve)}
