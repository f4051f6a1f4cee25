"""Convolutions and deconvolutions with any padding, also with less than none."""

from __future__ import annotations

from collections.abc import Sequence

from clgraft.core.nn.builder import Build, Tensor
from clgraft.core.nn.shapes import padded
from clgraft.core.operators.conv import ConvProblem
from clgraft.core.operators.deconvolution import DeconvProblem

Sizes = Sequence[int]


def convolution(
    build: Build,
    x: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    *,
    stride: Sizes = (),
    pad: Sizes = (),
    pad_end: Sizes = (),
    dilate: Sizes = (),
    groups: int = 1,
) -> Tensor:
    """Return a convolution of (n, c, ...) with w (outputs, c / groups, ...) and a bias for each output.

    Negative padding cuts elements off.
    """
    ndim = x.ndim - 2
    begin, end = tuple(pad) or (0,) * ndim, tuple(pad_end) or tuple(pad) or (0,) * ndim
    x = padded(build, x, (0, 0, *(min(p, 0) for p in begin)), (0, 0, *(min(p, 0) for p in end)))
    problem = ConvProblem(
        direction="forward",
        batch=x.shape[0],
        in_channels=x.shape[1],
        out_channels=w.shape[0],
        in_size=x.shape[2:],
        kernel=w.shape[2:],
        stride=tuple(stride),
        pad_begin=tuple(max(p, 0) for p in begin),
        pad_end=tuple(max(p, 0) for p in end),
        dilate=tuple(dilate),
        groups=groups,
        bias=b is not None,
        dtype=x.dtype,
    )
    return build.add(problem, x, w, *([] if b is None else [b]))[0]


def whole_size(size: Sizes, kernel: Sizes, stride: Sizes, dilate: Sizes) -> tuple[int, ...]:
    """Return the size of a deconvolution without padding."""
    return tuple((i - 1) * s + (k - 1) * d + 1 for i, s, k, d in zip(size, stride, kernel, dilate))


def deconvolution(
    build: Build,
    x: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    *,
    stride: Sizes,
    pad: Sizes,
    pad_end: Sizes,
    dilate: Sizes,
    extra: Sizes,
    groups: int = 1,
) -> Tensor:
    """Return a deconvolution of (n, c, ...) with w (c, outputs / groups, ...) and a bias for each output.

    Padding is cut off from the whole result; where it is negative, or more `extra` elements are wanted at the end than
    are cut off there, the result is filled up with the bias.

    Raises
    ------
    ValueError
        If nothing is left.
    """
    ndim, kernel, channels = x.ndim - 2, w.shape[2:], w.shape[1] * groups
    after = tuple(e - q for e, q in zip(extra, pad_end))  # elements more, or less, than the whole result
    plain = all(p >= 0 for p in pad) and all(a <= 0 for a in after)
    full = whole_size(x.shape[2:], kernel, stride, dilate)
    if any(p >= f or -a >= f for p, a, f in zip(pad, after, full)):
        raise ValueError(f"pads {tuple(pad)} and {tuple(pad_end)} for a result of {full}")
    problem = DeconvProblem(
        direction="forward",
        batch=x.shape[0],
        in_channels=x.shape[1],
        out_channels=channels,
        in_size=x.shape[2:],
        kernel=kernel,
        stride=tuple(stride),
        pad_begin=tuple(pad) if plain else (0,) * ndim,
        pad_end=tuple(-a for a in after) if plain else (0,) * ndim,
        dilate=tuple(dilate),
        groups=groups,
        bias=b is not None and plain,
        dtype=x.dtype,
    )
    if plain:
        return build.add(problem, x, w, *([] if b is None else [b]))[0]
    (y,) = build.add(problem, x, w)
    y = padded(build, y, (0, 0, *(-p for p in pad)), (0, 0, *after))
    return y if b is None else build.pointwise("y0 = x0 + x1;", [y, build.reshape(b, (channels, *(1,) * ndim))])[0]
