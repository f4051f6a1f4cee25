"""Convolutions and deconvolutions with any padding, also with less than none, and their gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Union

from clgraft.core.errors import ProblemError
from clgraft.core.nn.builder import Build, Tensor
from clgraft.core.nn.shapes import padded
from clgraft.core.operators.conv import ConvProblem
from clgraft.core.operators.deconvolution import DeconvProblem
from clgraft.core.problem.layout import FIRST, LAST

Sizes = Sequence[int]
AnyProblem = Union[ConvProblem, DeconvProblem]
GRADIENTS = ("backward_data", "backward_filter", "backward_bias")  # of x, of the weights, of the bias


def weight_shape(
    x: Sizes, outputs: int, kernel: Sizes, *, groups: int = 1, channels_last: bool = False, transposed: bool = False
) -> tuple[int, ...]:
    """Return the shape of the weights for values of a shape; `transposed` says that they are a deconvolution's."""
    channels = x[-1 if channels_last else 1]
    first, second = (channels, outputs // groups) if transposed else (outputs, channels // groups)
    return (first, *kernel, second) if channels_last else (first, second, *kernel)


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
    channels_last: bool = False,
) -> Tensor:
    """Return a convolution of (n, c, ...) with w (outputs, c / groups, ...) and a bias for each output.

    With `channels_last` x is (n, ..., c) and w (outputs, ..., c / groups). Without spatial axes it is a product of
    matrices. Negative padding cuts elements off.
    """
    begin, end = _both(x, pad, pad_end)
    if any(p < 0 for p in (*begin, *end)):
        cut = [
            (*(0,) * (not channels_last), *(min(p, 0) for p in side), *(0,) * channels_last) for side in (begin, end)
        ]
        x = padded(build, x, *((0, *side) for side in cut))
        begin, end = (tuple(max(p, 0) for p in side) for side in (begin, end))
    problem = _convolution(x, w, stride, begin, end, dilate, groups, b is not None, channels_last)
    return _in_shape(x, build.add(problem, x, w, *([] if b is None else [b]))[0])


def convolution_gradients(
    build: Build,
    dy: Tensor,
    x: Tensor,
    w: Tensor,
    wanted: Sequence[bool],
    *,
    stride: Sizes = (),
    pad: Sizes = (),
    pad_end: Sizes = (),
    dilate: Sizes = (),
    groups: int = 1,
) -> tuple[Tensor | None, ...]:
    """Return the wanted gradients of `convolution`, of x, w and the bias, for padding of at least 0."""
    problem = _convolution(x, w, stride, *_both(x, pad, pad_end), dilate, groups)
    return _gradients(build, problem, {"dy": dy, "x": x, "w": w}, wanted)


def whole_size(size: Sizes, kernel: Sizes, stride: Sizes = (), dilate: Sizes = ()) -> tuple[int, ...]:
    """Return the size of a deconvolution without padding."""
    ones = (1,) * len(size)
    each = zip(size, tuple(stride) or ones, kernel, tuple(dilate) or ones)
    return tuple((i - 1) * s + (k - 1) * d + 1 for i, s, k, d in each)


def same_size(size: Sizes, stride: Sizes) -> tuple[int, ...]:
    """Return the size of a deconvolution that undoes a convolution with padding to ceil(size / stride)."""
    return tuple(i * s for i, s in zip(size, stride))


def pads_to_size(full: Sizes, wanted: Sizes, *, larger_first: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the padding at both ends of each axis with which a deconvolution has a size: half of what is too much.

    Parameters
    ----------
    full : sequence of int
        Its size without padding, as `whole_size` returns it, and what is added at the end.
    wanted : sequence of int
    larger_first : bool
        Whether the first of two unequal halves is the larger one.
    """
    surplus = [f - w for f, w in zip(full, wanted)]
    small, large = tuple(s // 2 for s in surplus), tuple(s - s // 2 for s in surplus)
    return (large, small) if larger_first else (small, large)


def deconvolution(
    build: Build,
    x: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    *,
    stride: Sizes = (),
    pad: Sizes = (),
    pad_end: Sizes = (),
    dilate: Sizes = (),
    extra: Sizes = (),
    size: Sizes = (),
    larger_first: bool = True,
    groups: int = 1,
    channels_last: bool = False,
) -> Tensor:
    """Return a deconvolution of (n, c, ...) with w (c, outputs / groups, ...) and a bias for each output.

    With `channels_last` x is (n, ..., c) and w (c, ..., outputs / groups). Padding is cut off from the whole result;
    where it is negative, or at least a stride more of `extra` elements is wanted at the end than is cut off there, the
    result is filled up with the bias.

    Parameters
    ----------
    size : sequence of int, optional
        Of the result, in place of padding: half of what is too much is cut off at either end, see `pads_to_size`.

    Raises
    ------
    ProblemError
        If nothing is left.
    """
    pixels, kernel = (one.shape[1:-1] if channels_last else one.shape[2:] for one in (x, w))
    full = whole_size(pixels, kernel, stride, dilate)
    if size:
        whole = [f + e for f, e in zip(full, tuple(extra) or (0,) * len(full))]
        pad, pad_end = pads_to_size(whole, size, larger_first=larger_first)
    begin, end, more = _cut(x, pad, pad_end, extra)
    after = [e - q for e, q in zip(more, end)]
    if any(p >= f or -a >= f for p, a, f in zip(begin, after, full)):
        raise ProblemError(f"[deconv] got pads {begin} and {end}, expected less than the result of {full}")
    if all(p >= 0 for p in begin) and all(a < s for a, s in zip(after, tuple(stride) or (1,) * len(after))):
        problem = _deconvolution(x, w, stride, begin, end, more, dilate, groups, b is not None, channels_last)
        return _in_shape(x, build.add(problem, x, w, *([] if b is None else [b]))[0])
    if channels_last:
        raise ProblemError(f"[deconv] got pads {begin} and {end}, expected some from 0 on in channels last")
    none = (0,) * len(full)
    (y,) = build.add(_deconvolution(x, w, stride, none, none, none, dilate, groups), x, w)
    y = padded(build, y, (0, 0, *(-p for p in begin)), (0, 0, *after))
    return y if b is None else build.pointwise("y0 = x0 + x1;", [y, build.reshape(b, (b.size, *(1,) * len(full)))])[0]


def deconvolution_gradients(
    build: Build,
    dy: Tensor,
    x: Tensor,
    w: Tensor,
    wanted: Sequence[bool],
    *,
    stride: Sizes,
    pad: Sizes,
    pad_end: Sizes = (),
    dilate: Sizes,
    extra: Sizes = (),
    groups: int = 1,
) -> tuple[Tensor | None, ...]:
    """Return the wanted gradients of `deconvolution`, of x, w and the bias, where nothing is filled up."""
    problem = _deconvolution(x, w, stride, *_cut(x, pad, pad_end, extra), dilate, groups)
    return _gradients(build, problem, {"dy": dy, "x": x, "w": w}, wanted)


def _both(x: Tensor, pad: Sizes, pad_end: Sizes) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the padding before and after each axis; none is 0, and none at the end is that before."""
    begin = tuple(pad) or (0,) * (x.ndim - 2)
    return begin, tuple(pad_end) or begin


def _cut(x: Tensor, pad: Sizes, pad_end: Sizes, extra: Sizes) -> tuple[Sizes, Sizes, Sizes]:
    """Return what is cut off at the beginning and at the end, and what is added there, with a cut of at least 0."""
    begin, end = _both(x, pad, pad_end)
    pairs = [(q, e) if q >= 0 else (0, e - q) for q, e in zip(end, tuple(extra) or (0,) * len(end))]
    return begin, tuple(q for q, _ in pairs), tuple(e for _, e in pairs)


def _in_shape(x: Tensor, y: Tensor) -> Tensor:
    """Return a result with as many axes as its input: a product of matrices is computed with an axis of one pixel."""
    return replace(y, shape=y.shape[: x.ndim])


def _common(x: Tensor, w: Tensor, channels_last: bool) -> dict[str, Any]:
    """Return what both problems take from the shapes of a value and of the weights."""
    pixels, kernel = (one.shape[1:-1] if channels_last else one.shape[2:] for one in (x, w))
    return {
        "direction": "forward",
        "batch": x.shape[0],
        "in_channels": x.shape[-1 if channels_last else 1],
        "in_size": pixels or (1,),
        "kernel": kernel or (1,),
        "dtype": x.dtype,
        "layout": LAST if channels_last else FIRST,
    }


def _convolution(
    x: Tensor,
    w: Tensor,
    stride: Sizes,
    begin: Sizes,
    end: Sizes,
    dilate: Sizes,
    groups: int,
    bias: bool = False,
    channels_last: bool = False,
) -> ConvProblem:
    return ConvProblem(
        **_common(x, w, channels_last),
        out_channels=w.shape[0],
        stride=tuple(stride),
        pad_begin=tuple(begin),
        pad_end=tuple(end),
        dilate=tuple(dilate),
        groups=groups,
        bias=bias,
    )


def _deconvolution(
    x: Tensor,
    w: Tensor,
    stride: Sizes,
    begin: Sizes,
    end: Sizes,
    extra: Sizes,
    dilate: Sizes,
    groups: int,
    bias: bool = False,
    channels_last: bool = False,
) -> DeconvProblem:
    return DeconvProblem(
        **_common(x, w, channels_last),
        out_channels=w.shape[-1 if channels_last else 1] * groups,
        stride=tuple(stride),
        pad_begin=tuple(begin),
        pad_end=tuple(end),
        adj=tuple(extra),
        dilate=tuple(dilate),
        groups=groups,
        bias=bias,
    )


def _gradients(
    build: Build, problem: AnyProblem, given: Mapping[str, Tensor], wanted: Sequence[bool]
) -> tuple[Tensor | None, ...]:
    """Return the wanted gradients of a forward problem."""
    found: list[Tensor | None] = []
    for direction, asked in zip(GRADIENTS, wanted):
        backward = problem.with_direction(direction)
        reads = (given[argument.name] for argument in backward.arguments() if argument.role == "in")
        found.append(build.add(backward, *reads)[0] if asked else None)
    return tuple(found)
