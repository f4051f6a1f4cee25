"""Elements that only move: joined, cut, bordered, repeated, in another order, or copied."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Sequence

import numpy as np

from clgraft.core.errors import ProblemError
from clgraft.core.nn.builder import Build, Tensor
from clgraft.core.operators.copying import ConcatProblem, PadProblem, RepeatProblem, SliceProblem, TransposeProblem
from clgraft.core.operators.cumulative import CumulativeProblem
from clgraft.core.operators.indexing import GatherProblem
from clgraft.core.problem import SMALL, Problem, ceil_div

Sizes = Sequence[int]
MOST_TAPS = 4096  # of windows that become channels


def joined(build: Build, parts: Sequence[Tensor], axis: int) -> Tensor:
    """Return parts joined along an axis; their other sizes are equal."""
    first = parts[0].shape
    extents = tuple(part.shape[axis] for part in parts)
    problem = ConcatProblem("forward", math.prod(first[:axis]), extents, math.prod(first[axis + 1 :]), parts[0].dtype)
    shape = (*first[:axis], sum(extents), *first[axis + 1 :])
    return build.reshape(build.add(problem, *parts)[0], shape)


def split(build: Build, x: Tensor, axis: int, extents: Sizes) -> tuple[Tensor, ...]:
    """Return the parts of an axis."""
    shape = x.shape
    problem = ConcatProblem("backward", math.prod(shape[:axis]), tuple(extents), math.prod(shape[axis + 1 :]), x.dtype)
    parts = zip(build.add(problem, x), extents)
    return tuple(build.reshape(part, (*shape[:axis], extent, *shape[axis + 1 :])) for part, extent in parts)


def parts_of(size: int, *, length: int = 0, count: int = 0) -> list[int]:
    """Return the sizes of the parts of an axis: all are equal, but the last ones may be smaller.

    Parameters
    ----------
    size : int
        Of the axis.
    length : int
        Of a part; by default as many as `count` parts need.
    count : int
        How many parts there are, of which the last ones may be empty; by default as many as hold something.
    """
    length = length or ceil_div(size, count)
    return [max(min(length, size - i * length), 0) for i in range(count or ceil_div(size, length))]


def cut(build: Build, x: Tensor, shape: Sizes, begin: Sizes, step: Sizes = ()) -> Tensor:
    """Return the box of a shape that begins at a place, with steps from element to element, backwards if negative."""
    more = (tuple(step),) if step else ()
    return build.add(SliceProblem("forward", x.shape, tuple(shape), tuple(begin), x.dtype, *more), x)[0]


def section(size: int, begin: int | None, end: int | None, step: int | None = None) -> tuple[int, int]:
    """Return the first place and the number of places of a slice of an axis, by Python's rules."""
    places = range(*slice(begin, end, step).indices(size))
    return places.start, len(places)


def filled_up(sizes: Sizes, count: int) -> tuple[int, ...]:
    """Return the sizes of an array of so many elements, of which -1 stands for what the others leave."""
    known = math.prod(size for size in sizes if size != -1)
    return tuple((count // known if known else 0) if size == -1 else size for size in sizes)


def without_ones(shape: Sizes, axes: Collection[int]) -> tuple[int, ...]:
    """Return a shape without axes of size 1, and with those of another size."""
    return tuple(size for axis, size in enumerate(shape) if axis not in axes or size != 1)


def with_ones(shape: Sizes, places: Collection[int]) -> tuple[int, ...]:
    """Return a shape with axes of size 1 at places of the result."""
    if len(set(places)) < len(places):
        raise ProblemError(f"[shape] got axes {tuple(places)}, expected each of them once")
    sizes = iter(shape)
    return tuple(1 if place in places else next(sizes) for place in range(len(shape) + len(places)))


def matrix_shape(shape: Sizes, axis: int) -> tuple[int, int]:
    """Return the shape of a matrix whose rows are the axes before one, and whose columns are that and those after."""
    return math.prod(shape[:axis]), math.prod(shape[axis:])


def flattened(shape: Sizes, first: int, last: int) -> tuple[int, ...]:
    """Return a shape whose axes from one to another, which is the last of them, are a single one."""
    return (*shape[:first], math.prod(shape[first : last + 1]), *shape[last + 1 :])


def padded(build: Build, x: Tensor, begin: Sizes, end: Sizes, value: float = 0.0) -> Tensor:
    """Return a value with a constant around it; negative padding cuts elements off."""
    for sign in (-1, 1):
        low, high = ([max(sign * p, 0) for p in side] for side in (begin, end))
        if not any(low) and not any(high):
            continue
        shape = tuple(size + sign * (a + b) for size, a, b in zip(x.shape, low, high))
        x = cut(build, x, shape, low) if sign < 0 else in_constant(build, x, shape, low, value)
    return x


def in_constant(build: Build, x: Tensor, shape: Sizes, begin: Sizes, value: float = 0.0, *, step: Sizes = ()) -> Tensor:
    """Return an array of a constant that holds x from a place on, with steps from element to element."""
    problem = SliceProblem("backward", tuple(shape), x.shape, tuple(begin), x.dtype, tuple(step))
    return build.add(problem, x, scalars={"value": float(value)})[0]


def bordered(build: Build, x: Tensor, mode: str, begin: Sizes, end: Sizes, value: float = 0.0) -> Tensor:
    """Return a value with its ``edge``, its mirror image (``reflect``) or a number (``constant``) around it."""
    if mode == "constant":
        whole = tuple(b + size + e for b, size, e in zip(begin, x.shape, end))
        return in_constant(build, x, whole, begin, value)
    return build.add(PadProblem("forward", mode, x.shape, tuple(begin), tuple(end), x.dtype), x)[0]


def middle(size: Sizes, part: Sizes) -> tuple[int, ...]:
    """Return where the middle part of an array begins; of two such places, the first."""
    return tuple((whole - taken) // 2 for whole, taken in zip(size, part))


def turned(build: Build, x: Tensor, axes: Collection[int]) -> Tensor:
    """Return a value with some axes read from the end."""
    begin = tuple(size - 1 if axis in axes else 0 for axis, size in enumerate(x.shape))
    return cut(build, x, x.shape, begin, tuple(-1 if axis in axes else 1 for axis in range(x.ndim)))


def triangle(build: Build, x: Tensor, diagonal: int, *, upper: bool) -> Tensor:
    """Return matrices (..., rows, columns) with zeros below a diagonal, or above it where `upper` is false.

    Diagonal 0 is the main one, and those above it have positive numbers.
    """
    rows, columns = x.shape[-2:]
    diagonal = max(-rows, min(diagonal, columns))  # numpy has no larger numbers than those of int64
    mask = (np.triu if upper else np.tril)(np.ones((rows, columns), x.dtype), diagonal)
    return build.pointwise("y0 = x0 != 0 ? x1 : 0;", [build.constant(mask), x])[0]


def up_to(build: Build, x: Tensor, ends: Tensor, axis: int, other: float) -> Tensor:
    """Return x at the first places of an axis, and a number at the others.

    Parameters
    ----------
    x : Tensor
    ends : Tensor
        How many places keep x, with fractions cut off; it broadcasts to x, with size 1 on the axis. No gradient passes.
    axis : int
    other : float
    """
    wide = "float32" if x.dtype in SMALL else x.dtype  # in which places are exact
    places = np.arange(x.shape[axis], dtype=wide).reshape(-1, *(1,) * (x.ndim - axis - 1))
    limits = [build.constant(places), build.without_gradient(build.cast(ends, wide))]
    return build.pointwise("y0 = x1 < trunc(x2) ? x0 : other;", [x, *limits], {"other": other})[0]


def wrapped(build: Build, x: Tensor, begin: Sizes, end: Sizes) -> Tensor:
    """Return a value with the other end of each axis around it, of at most the axis itself."""
    for axis, (low, high) in enumerate(zip(begin, end)):
        front, back = ((*x.shape[:axis], length, *x.shape[axis + 1 :]) for length in (low, high))
        last = [size - low if i == axis else 0 for i, size in enumerate(x.shape)]
        parts = [
            *([cut(build, x, front, last)] if low else []),
            x,
            *([cut(build, x, back, (0,) * x.ndim)] if high else []),
        ]
        x = joined(build, parts, axis) if low or high else x
    return x


def transposed(build: Build, x: Tensor, order: Sizes) -> Tensor:
    """Return the axes in another order."""
    return build.add(TransposeProblem(x.shape, tuple(order), x.dtype), x)[0]


def permuted(build: Build, x: Tensor, order: Sizes) -> Tensor:
    """Return the axes in another order; nothing is copied where only axes of one element move."""
    moving = [axis for axis in order if x.shape[axis] != 1]
    if moving != sorted(moving):
        return transposed(build, x, order)
    return build.reshape(x, tuple(x.shape[axis] for axis in order))


def inverse_order(order: Sizes) -> tuple[int, ...]:
    """Return the order of axes that undoes another one."""
    return tuple(sorted(range(len(order)), key=order.__getitem__))


def blocks_to_channels(build: Build, x: Tensor, size: int, *, pixel_first: bool = True) -> Tensor:
    """Return (n, c, h, w) with the pixels of blocks of size by size as channels.

    Parameters
    ----------
    pixel_first : bool
        Whether the channels of a block's first pixel come first, then those of the second one, and so on (ONNX's mode
        DCR, and MXNet's order), or the pixels of the first channel (CRD).

    Raises
    ------
    ProblemError
        If blocks do not fill the image.
    """
    n, c, h, w = x.shape
    if h % size or w % size:
        raise ProblemError(f"[transpose] got {h} rows and {w} columns, expected multiples of {size}")
    parts = build.reshape(x, (n, c, h // size, size, w // size, size))
    y = transposed(build, parts, (0, 3, 5, 1, 2, 4) if pixel_first else (0, 1, 3, 5, 2, 4))
    return build.reshape(y, (n, c * size * size, h // size, w // size))


def channels_to_blocks(build: Build, x: Tensor, size: int, *, pixel_first: bool = True) -> Tensor:
    """Return (n, c, h, w) with channels as the pixels of blocks: the reverse of `blocks_to_channels`.

    Raises
    ------
    ProblemError
        If the channels do not fill blocks.
    """
    n, c, h, w = x.shape
    if c % size**2:
        raise ProblemError(f"[transpose] got {c} channels, expected a multiple of {size**2}")
    blocks, order = ((size, size, c // size**2), (0, 3, 4, 1, 5, 2))
    if not pixel_first:
        blocks, order = ((c // size**2, size, size), (0, 1, 4, 2, 5, 3))
    y = transposed(build, build.reshape(x, (n, *blocks, h, w)), order)
    return build.reshape(y, (n, c // size**2, h * size, w * size))


def windows_as_channels(build: Build, x: Tensor, kernel: Sizes, *, stride: Sizes, pad: Sizes, dilate: Sizes) -> Tensor:
    """Return (n, c, ...) as (n, c * taps, ...): for every window the pixels that it covers, as a convolution has them.

    Raises
    ------
    ProblemError
        If there is no window, or one of too many pixels.
    """
    n, c, *size = x.shape
    if math.prod(kernel) > MOST_TAPS:
        raise ProblemError(f"[windows] got kernel {tuple(kernel)}, expected at most {MOST_TAPS} pixels")
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilate)]
    if any(r > i + 2 * p for r, i, p in zip(reach, size, pad)):
        raise ProblemError(f"[windows] got kernel {tuple(kernel)}, expected a dilated one within {tuple(size)} padded")
    counts = [(i + 2 * p - r) // s + 1 for i, p, r, s in zip(size, pad, reach, stride)]
    image, parts = padded(build, x, (0, 0, *pad), (0, 0, *pad)), []
    for tap in itertools.product(*map(range, kernel)):
        begin = (0, 0, *(place * d for place, d in zip(tap, dilate)))
        part = cut(build, image, (n, c, *counts), begin, (1, 1, *stride))
        parts.append(build.reshape(part, (n * c, 1, math.prod(counts))))
    return build.reshape(joined(build, parts, 1), (n, c * len(parts), *counts))


def repeated(build: Build, x: Tensor, times: Sizes, *, whole: bool) -> Tensor:
    """Return every axis repeated so many times: as a whole, or each element."""
    return build.add(RepeatProblem(x.shape, tuple(times), whole, x.dtype), x)[0]


def copied(build: Build, x: Tensor, shape: Sizes) -> Tensor:
    """Return the elements as a value of its own, in a shape; in a graph the copy is a view."""
    return moved_alike(build, SliceProblem("forward", (x.size,), (x.size,), (0,), x.dtype), x, shape)


def moved_alike(build: Build, problem: Problem, x: Tensor, shape: Sizes) -> Tensor:
    """Return what a problem of one input makes of x, in a shape, where its gradient goes back by the same problem."""
    first = build.here
    y = build.reshape(build.add(problem, x)[0], shape)

    def backward(build: Build, dys: tuple[Tensor | None, ...], wanted: tuple[bool, ...]) -> tuple[Tensor | None, ...]:
        (dy,) = dys
        assert dy is not None
        return build.add(problem, dy)

    build.state_gradient(first, (x,), (y,), backward)
    return y


def broadcast(build: Build, x: Tensor, shape: Sizes) -> Tensor:
    """Return the elements repeated along axes of size 1, and along new ones in front, until they have a shape."""
    own = (1,) * (len(shape) - x.ndim) + x.shape
    if len(own) != len(shape) or any(size not in (1, wanted) for size, wanted in zip(own, shape)):
        raise ProblemError(f"[repeat] got x of shape {x.shape}, expected one that broadcasts to {tuple(shape)}")
    if own == tuple(shape):
        return copied(build, x, shape)
    times = tuple(wanted if size == 1 else 1 for size, wanted in zip(own, shape))
    return repeated(build, build.reshape(x, own), times, whole=True)


def filled(build: Build, shape: Sizes, value: float, dtype: str) -> Tensor:
    """Return one number in a shape, as a value of its own."""
    return broadcast(build, build.filled((1,) * len(shape), value, dtype), shape)


def taken(build: Build, x: Tensor, index: Tensor, axis: int) -> Tensor:
    """Return elements of an axis by their index, real numbers; one outside of the axis counts as its end."""
    extent = x.shape[axis]
    (inside,) = build.pointwise("y0 = fmin(fmax(trunc(x0), 0), most);", [index], {"most": float(extent - 1)})
    whole = build.cast(build.reshape(inside, (index.size,)), "int32")
    outer, inner = math.prod(x.shape[:axis]), math.prod(x.shape[axis + 1 :])
    (y,) = build.add(GatherProblem(outer, extent, inner, index.size, "shared", x.dtype), x, whole)
    return build.reshape(y, (*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]))


def picked(build: Build, x: Tensor, index: Tensor, axis: int, *, wraps: bool = False, keeps: bool = False) -> Tensor:
    """Return the element of an axis that each index names, real numbers of x's shape without the axis, or of size 1.

    Parameters
    ----------
    wraps : bool
        Whether an index outside of the axis counts on from its other end; else it counts as its end.
    keeps : bool
        Whether the axis stays, with the size 1.
    """
    outer, extent, inner = math.prod(x.shape[:axis]), x.shape[axis], math.prod(x.shape[axis + 1 :])
    inside = "y0 = fmin(fmax(trunc(x0), 0), size - 1);"
    if wraps:
        inside = "y0 = trunc(x0) - size * floor(trunc(x0) / size);"
    (place,) = build.pointwise(inside, [index], {"size": float(extent)})
    whole = build.cast(build.reshape(place, (outer, 1, inner)), "int32")
    (y,) = build.add(GatherProblem(outer, extent, inner, 1, "elements", x.dtype), x, whole)
    return build.reshape(y, (*x.shape[:axis], *(1,) * keeps, *x.shape[axis + 1 :]))


def count_between(start: float, stop: float, step: float) -> int:
    """Return how many of start, start + step, start + 2 step, and so on are in front of `stop`."""
    return max(0, math.ceil((stop - start) / step))


def counted(build: Build, count: int, start: float, step: float, dtype: str) -> Tensor:
    """Return start, start + step, start + 2 step, and so on."""
    ones = build.filled((count,), 1.0, dtype)
    (places,) = build.add(CumulativeProblem("sum", 1, count, 1, exclusive=True, dtype=dtype), ones)
    scalars = {"start": start, "by": step}
    return build.pointwise("y0 = start + by * x0;", [build.reshape(places, (count,))], scalars)[0]


def shuffled_channels(build: Build, x: Tensor, groups: int) -> Tensor:
    """Return (n, c, ...) with the first channel of each group in front, then the second ones (Zhang et al. 2018)."""
    n, c, rest = x.shape[0], x.shape[1], math.prod(x.shape[2:])
    parts = build.reshape(x, (n, groups, c // groups, rest))
    return build.reshape(transposed(build, parts, (0, 2, 1, 3)), x.shape)
