"""Convolutions and deconvolutions with any padding, also with less than none, and their gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Union

from clgraft.core.errors import ProblemError
from clgraft.core.nn.builder import Build, Tensor
from clgraft.core.nn.shapes import padded
from clgraft.core.operators.conv import ConvProblem
from clgraft.core.operators.deconvolution import DeconvProblem

Sizes = Sequence[int]
AnyProblem = Union[ConvProblem, DeconvProblem]
GRADIENTS = ("backward_data", "backward_filter", "backward_bias")  # of x, of the weights, of the bias


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
    begin, end = _both(x, pad, pad_end)
    x = padded(build, x, (0, 0, *(min(p, 0) for p in begin)), (0, 0, *(min(p, 0) for p in end)))
    begin, end = (tuple(max(p, 0) for p in side) for side in (begin, end))
    problem = _convolution(x, w, stride, begin, end, dilate, groups, b is not None)
    return build.add(problem, x, w, *([] if b is None else [b]))[0]


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


def whole_size(size: Sizes, kernel: Sizes, stride: Sizes, dilate: Sizes) -> tuple[int, ...]:
    """Return the size of a deconvolution without padding."""
    return tuple((i - 1) * s + (k - 1) * d + 1 for i, s, k, d in zip(size, stride, kernel, dilate))


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
    stride: Sizes,
    pad: Sizes,
    pad_end: Sizes = (),
    dilate: Sizes,
    extra: Sizes = (),
    groups: int = 1,
) -> Tensor:
    """Return a deconvolution of (n, c, ...) with w (c, outputs / groups, ...) and a bias for each output.

    Padding is cut off from the whole result; where it is negative, or at least a stride more of `extra` elements is
    wanted at the end than is cut off there, the result is filled up with the bias.

    Raises
    ------
    ProblemError
        If nothing is left.
    """
    ndim = x.ndim - 2
    begin, after = _cut(x, pad, pad_end, extra)
    full = whole_size(x.shape[2:], w.shape[2:], stride, dilate)
    if any(p >= f or -a >= f for p, a, f in zip(begin, after, full)):
        end = tuple(pad_end) or begin
        raise ProblemError(f"[deconv] got pads {begin} and {end}, expected less than the result of {full}")
    if all(p >= 0 for p in begin) and all(a < s for a, s in zip(after, stride)):
        problem = _deconvolution(x, w, stride, begin, after, dilate, groups, b is not None)
        return build.add(problem, x, w, *([] if b is None else [b]))[0]
    (y,) = build.add(_deconvolution(x, w, stride, (0,) * ndim, (0,) * ndim, dilate, groups), x, w)
    y = padded(build, y, (0, 0, *(-p for p in begin)), (0, 0, *after))
    return y if b is None else build.pointwise("y0 = x0 + x1;", [y, build.reshape(b, (b.size, *(1,) * ndim))])[0]


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


def _cut(x: Tensor, pad: Sizes, pad_end: Sizes, extra: Sizes) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the elements that a result has less at the beginning, and more at the end, than the whole one."""
    begin, end = _both(x, pad, pad_end)
    return begin, tuple(e - q for e, q in zip(tuple(extra) or (0,) * len(end), end))


def _convolution(
    x: Tensor, w: Tensor, stride: Sizes, begin: Sizes, end: Sizes, dilate: Sizes, groups: int, bias: bool = False
) -> ConvProblem:
    return ConvProblem(
        direction="forward",
        batch=x.shape[0],
        in_channels=x.shape[1],
        out_channels=w.shape[0],
        in_size=x.shape[2:],
        kernel=w.shape[2:],
        stride=tuple(stride),
        pad_begin=tuple(begin),
        pad_end=tuple(end),
        dilate=tuple(dilate),
        groups=groups,
        bias=bias,
        dtype=x.dtype,
    )


def _deconvolution(
    x: Tensor, w: Tensor, stride: Sizes, begin: Sizes, after: Sizes, dilate: Sizes, groups: int, bias: bool = False
) -> DeconvProblem:
    return DeconvProblem(
        direction="forward",
        batch=x.shape[0],
        in_channels=x.shape[1],
        out_channels=w.shape[1] * groups,
        in_size=x.shape[2:],
        kernel=w.shape[2:],
        stride=tuple(stride),
        pad_begin=tuple(begin),
        pad_end=tuple(max(-a, 0) for a in after),
        adj=tuple(max(a, 0) for a in after),
        dilate=tuple(dilate),
        groups=groups,
        bias=bias,
        dtype=x.dtype,
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
