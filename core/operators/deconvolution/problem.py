"""The deconvolution problem: the shapes of transposed convolutions of 1-D to 3-D."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from clgraft.core.operators.conv.problem import ConvProblem
from clgraft.core.operators.deconvolution.reference import deconvolve
from clgraft.core.problem import in_float64
from clgraft.core.problem.layout import laid_out, with_channels_first
from clgraft.core.problem.spatial import LARGEST, Field, SpatialProblem

# a deconvolution's direction is the convolution's of which it is the transpose
TRANSPOSED = {
    "forward": "backward_data",
    "backward_data": "forward",
    "backward_filter": "backward_filter",
    "backward_bias": "backward_bias",
}
# by direction, the convolution's argument -> the deconvolution's; others have the same name
ROLES = {
    "forward": {"dy": "x", "dx": "y"},
    "backward_data": {"x": "dy", "y": "dx"},
    "backward_filter": {"x": "dy", "dy": "x"},
    "backward_bias": {},
}


@dataclass(frozen=True)
class DeconvProblem(SpatialProblem):
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
        ``float32``, ``float16`` or ``bfloat16`` (storage), or ``float64``.
    layout : str
        ``nchw``, channels first, or ``nhwc``, channels last, for one to three spatial axes; see `core.problem.layout`.

    Raises
    ------
    ProblemError
        If the numbers describe no deconvolution.
    """

    kind: ClassVar[str] = "deconv"
    examples: ClassVar[tuple[str, ...]] = (
        "g3 n2 ic6 oc9 ih5 iw7 kh4 kw4 sh2 sw2 ph1 pw1 b1",
        "n2 ic5 oc7 ih6 iw5 kh3 kw3 sh2 sw2 ph1 pw1 ah1 aw1 b1",
        "g4 n1 ic4 oc4 ih4 iw5 kh32 kw32 sh16 sw16 ph8 pw8 b1",
        "n2 ic5 oc7 ih6 iw5 kh3 kw2 sh2 sw2 ph1 pw0 b1 layout=nhwc",
    )
    SPATIAL: ClassVar[Mapping[str, Field]] = {
        "i": Field("in_size", 1),
        "k": Field("kernel", 1),
        "s": Field("stride", 1, 1),
        "p": Field("pad_begin", 0, 0),
        "q": Field("pad_end", 0, "pad_begin"),
        "a": Field("adj", 0, 0),
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
    adj: tuple[int, ...] = ()
    dilate: tuple[int, ...] = ()
    groups: int = 1
    bias: bool = False
    dtype: str = "float32"
    layout: str = "nchw"

    def _check_sizes(self) -> None:
        expect = self._expect
        for stride, adj, end in zip(self.stride, self.adj, self.pad_end):
            expect(adj - end < stride, "adj", self.adj, f"less than stride {self.stride} beyond pad_end {self.pad_end}")
        size = self.out_size
        expect(all(1 <= o <= LARGEST for o in size), "pad_begin", self.pad_begin, f"an output of 1 or more, not {size}")

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
    def weight_shape(self) -> tuple[int, ...]:
        """Shape of the weights: (in_channels, out_channels / groups, kernel...); in channels last these end it."""
        return laid_out(self.layout, self.in_channels, self.out_channels // self.groups, self.kernel)

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
            layout=self.layout,
        )

    @property
    def roles(self) -> Mapping[str, str]:
        """Which argument of the deconvolution stands for an argument of `convolution`."""
        return ROLES[self.direction]

    @property
    def flops(self) -> int:
        """Multiply-adds of the direct method, counted as two operations."""
        return self.convolution.flops

    @property
    def terms(self) -> int:
        """Number of products that one element of the result sums, as in `convolution`; of the bias's gradient, dy's."""
        if self.direction == "backward_bias":
            return self.batch * math.prod(self.out_size)
        return self.convolution.terms

    def reference(
        self, arrays: Mapping[str, np.ndarray], scalars: Mapping[str, float] | None = None
    ) -> dict[str, np.ndarray]:
        wide = in_float64(arrays)
        return {self.arguments()[-1].name: with_channels_first(self, wide, deconvolve)}
