"""Deformable convolution: every tap reads the image at a place of its own (Dai et al. 2017; masks Zhu et al. 2019)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from clgraft.core.errors import ProblemError
from clgraft.core.nn import shapes
from clgraft.core.nn.builder import Build, Tensor
from clgraft.core.nn.convolution import weight_shape
from clgraft.core.operators.conv import ConvProblem
from clgraft.core.operators.sampling import GridSampleProblem


class Window(NamedTuple):
    """Where the taps of a convolution are: two numbers each."""

    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    dilate: tuple[int, int] = (1, 1)
    pad: tuple[int, int] = (0, 0)
    pad_end: tuple[int, int] | None = None  # where it is not the same on both sides

    def out_size(self, size: Sequence[int]) -> tuple[int, ...]:
        """Return the size of the result for images of a size."""
        axes = zip(size, self.kernel, self.stride, self.dilate, self.pad, self.pad_end or self.pad)
        return tuple((i + p + q - (k - 1) * d - 1) // s + 1 for i, k, s, d, p, q in axes)


class Shapes(NamedTuple):
    """The shapes of what `convolution` reads and returns for images of a shape."""

    offset: tuple[int, ...]
    mask: tuple[int, ...]
    weight: tuple[int, ...]
    result: tuple[int, ...]


def shapes_of(x: Sequence[int], outputs: int, window: Window, *, groups: int = 1, parts: int = 1) -> Shapes:
    """Return the shapes of a convolution with so many outputs."""
    out, taps = window.out_size(x[2:]), parts * math.prod(window.kernel)
    weight = weight_shape(x, outputs, window.kernel, groups=groups)
    return Shapes((x[0], 2 * taps, *out), (x[0], taps, *out), weight, (x[0], outputs, *out))


def convolution(
    build: Build,
    x: Tensor,
    w: Tensor,
    offset: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    window: Window,
    *,
    groups: int = 1,
    parts: int = 1,
    beyond: bool = True,
) -> Tensor:
    """Return a convolution whose taps are moved: the sampled images are the channels of a convolution of one tap.

    Parameters
    ----------
    offset : Tensor
        (batch, parts times taps times 2, height, width): down and to the right.
    mask : Tensor, optional
        A factor of each tap (batch, parts times taps, height, width).
    groups, parts : int
        Of the convolution, and of channels that have offsets of their own.
    beyond : bool
        Whether a tap less than a pixel outside of the image reads a share of its border; otherwise it reads 0, and the
        pixel at the lower or right border itself as far as the end of the image.
    """
    (batch, channels, *size), kernel, out = x.shape, window.kernel, window.out_size(x.shape[2:])
    taps, images = math.prod(kernel), batch * parts
    if channels % parts or w.shape[1] * groups != channels:
        raise ProblemError(f"[deformable] got {channels} channels, expected {w.shape[1] * groups} in {parts} parts")
    moved = build.reshape(offset, (images, taps, 2, *out))
    places = [
        build.reshape(shapes.cut(build, moved, (images, taps, 1, *out), (0, 0, axis, 0, 0)), (images, taps, *out))
        for axis in range(2)
    ]
    unmoved = [_unmoved(build, window, out, axis, x.dtype) for axis in range(2)]
    # the sampling problem counts from -1 to 1, the middles of the first and the last pixel, or outer edges of a single
    corners = min(size) > 1
    shift, lengths = (0.0, [i - 1 for i in size]) if corners else (0.5, list(size))
    limits = {f"high{axis}": float(i) for axis, i in enumerate(size)}
    scalars = {"shift": shift, "down": 2 / lengths[0], "across": 2 / lengths[1], **({} if beyond else limits)}
    text = "real v = x0 + x2; real u = x1 + x3; y0 = (u + shift) * across - 1; y1 = (v + shift) * down - 1;"
    if not beyond:
        text += " y2 = v >= 0 && u >= 0 && v < high0 && u < high1 ? 1 : 0;"
    across, down, *inside = build.pointwise(text, [*places, *unmoved], scalars)
    grid = shapes.joined(build, [build.reshape(one, (images, taps, *out, 1)) for one in (across, down)], 4)
    sample = GridSampleProblem(
        method="linear",
        batch=images,
        channels=channels // parts,
        in_size=tuple(size),
        out_size=(taps * out[0], out[1]),
        padding="zeros" if beyond else "border",
        align_corners=corners,
        dtype=x.dtype,
    )
    (seen,) = build.add(sample, x, grid)
    factors = [*inside, *([build.reshape(mask, (images, taps, *out))] if mask is not None else [])]
    seen = build.reshape(seen, (images, channels // parts, taps, *out))
    for factor in factors:
        (seen,) = build.pointwise("y0 = x0 * x1;", [seen, build.reshape(factor, (images, 1, taps, *out))])
    problem = ConvProblem(
        direction="forward",
        batch=batch,
        in_channels=channels * taps,
        out_channels=w.shape[0],
        in_size=out,
        kernel=(1, 1),
        groups=groups,
        bias=bias is not None,
        dtype=x.dtype,
    )
    return build.add(problem, seen, w, *((bias,) if bias is not None else ()))[0]


def _unmoved(build: Build, window: Window, out: Sequence[int], axis: int, dtype: str) -> Tensor:
    """Return the rows, or columns, of the taps of each pixel without offsets (1, taps, height, width)."""
    kernel, stride, dilate, pad = (numbers[axis] for numbers in window[:4])
    places = np.arange(out[axis])[None, :] * stride - pad + np.arange(kernel)[:, None] * dilate
    wide = np.empty((*window.kernel, *out))
    wide[:] = places[:, None, :, None] if axis == 0 else places[None, :, None, :]
    return build.constant(wide.reshape(1, math.prod(window.kernel), *out).astype(dtype))
