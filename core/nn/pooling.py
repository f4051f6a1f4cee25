"""Pooling over windows, over whole images, over windows with holes and windows of adapted sizes; padding and counts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from clgraft.core.errors import ProblemError
from clgraft.core.nn.builder import Build, Tensor
from clgraft.core.nn.shapes import cut, joined, padded
from clgraft.core.operators.cumulative import CumulativeProblem
from clgraft.core.operators.indexing import GatherProblem, ScatterProblem
from clgraft.core.operators.pointwise import Reduction
from clgraft.core.operators.pooling import PoolProblem
from clgraft.core.problem import SMALL, ceil_div
from clgraft.core.problem.layout import FIRST, LAST

Sizes = Sequence[int]
ROOTS = {"lp1": "x0", "lp2": "sqrt(x0)", "lp3": "cbrt(x0)"}
POWERS = {"lp2": "{0} * {0}", "lp3": "{0} * {0} * {0}"}
LONGEST = 31  # levels of a pyramid that are counted
AT_ONCE = 8  # elements of a window with holes that one problem reads
CEIL_WITHIN = "ceil_within"  # rounds up, and counts windows that start within the image or in front of it alone
EXACT = 2**24  # whole numbers up to it are float32


def pool(
    build: Build,
    x: Tensor,
    operator: str,
    kernel: Sizes = (),
    *,
    stride: Sizes = (),
    dilate: Sizes = (),
    pad: Sizes = (),
    pad_end: Sizes = (),
    rounding: str = "floor",
    count_padding: bool = True,
    keep_nan: bool = False,
    channels_last: bool = False,
    absolute: bool = False,
    divisor: float | None = None,
) -> Tensor:
    """Return the maxima, averages, sums or norms of windows.

    Parameters
    ----------
    x : Tensor
        (n, c, ...), or (n, ..., c) with `channels_last`, of one to three spatial axes.
    operator, count_padding, keep_nan
        As of `PoolProblem`: PyTorch keeps NaN; in MXNet, Caffe and ONNX it is never a maximum.
    kernel : sequence of int, optional
        By default all of the image, with which stride and padding do not matter.
    stride, pad, pad_end : sequence of int, optional
        1, 0 and `pad` by default.
    dilate : sequence of int, optional
        Distances between the elements of a window, see `pool_with_holes`.
    rounding : str
        As of `PoolProblem`, or `CEIL_WITHIN`.
    absolute : bool
        Whether norms are those of magnitudes.
    divisor : float, optional
        What the sums of averages are divided by, in place of the number of elements.
    """
    if absolute and operator.startswith("lp") and operator != "lp2":
        x = build.pointwise("y0 = fabs(x0);", [x])[0]
    if set(dilate) - {1}:
        sizes = {"stride": stride, "dilate": dilate, "pad": pad, "pad_end": pad_end}
        ceil = rounding == CEIL_WITHIN
        return pool_with_holes(build, x, operator, kernel, **sizes, ceil=ceil, count_padding=count_padding)
    x, pad_end, rounding = _within(build, x, kernel, stride, pad, pad_end, rounding)
    given = kernel, stride, pad, pad_end, rounding, count_padding
    problem = pool_problem(x, _summing(operator, divisor), *given, keep_nan=keep_nan, channels_last=channels_last)
    return _divided(build, build.add(problem, x)[0], divisor)


def pool_with_places(
    build: Build,
    x: Tensor,
    kernel: Sizes = (),
    *,
    stride: Sizes = (),
    pad: Sizes = (),
    pad_end: Sizes = (),
    rounding: str = "floor",
) -> tuple[Tensor, Tensor]:
    """Return maxima (see `pool`), and where in its plane each stands, as a number; -1 where a window holds nothing.

    The numbers of types of 16 bits are float32, since float16 counts to 2048 and bfloat16 to 256.
    """
    x, pad_end, rounding = _within(build, x, kernel, stride, pad, pad_end, rounding)
    problem = pool_problem(x, "max", kernel, stride, pad, pad_end, rounding)
    (y,) = build.add(problem, x)
    return y, _places(build, problem, x, y)


def pool_gradient(
    build: Build,
    dy: Tensor,
    shape: Sizes,
    operator: str,
    kernel: Sizes = (),
    *,
    known: Sequence[Tensor] = (),
    stride: Sizes = (),
    pad: Sizes = (),
    pad_end: Sizes = (),
    rounding: str = "floor",
    count_padding: bool = True,
    keep_nan: bool = False,
    divisor: float | None = None,
) -> Tensor:
    """Return the gradient of `pool` for images of a shape; `known` are x and y, which gradients of maxima read."""
    x = Tensor("", tuple(shape), dy.dtype)
    given = kernel, stride, pad, pad_end, rounding, count_padding
    problem = pool_problem(x, _summing(operator, divisor), *given, keep_nan=keep_nan).with_direction("backward")
    return build.add(problem, *known, _divided(build, dy, divisor))[0]


def gradient_reads_values(operator: str) -> bool:
    """Return whether the gradient of a pooling reads the image and the result."""
    return operator in PoolProblem.GRADIENT_READS_VALUES


def _summing(operator: str, divisor: float | None) -> str:
    return "sum" if operator == "average" and divisor is not None else operator


def _divided(build: Build, x: Tensor, divisor: float | None) -> Tensor:
    """Return a value divided by a number, if there is one."""
    return x if divisor is None else build.pointwise("y0 = x0 / divisor;", [x], {"divisor": divisor})[0]


def pool_problem(
    x: Tensor,
    operator: str,
    kernel: Sizes = (),
    stride: Sizes = (),
    pad: Sizes = (),
    pad_end: Sizes = (),
    rounding: str = "floor",
    count_padding: bool = True,
    *,
    keep_nan: bool = False,
    channels_last: bool = False,
) -> PoolProblem:
    """Return the problem of a pooling (see `pool`)."""
    channels, pixels = (x.shape[-1], x.shape[1:-1]) if channels_last else (x.shape[1], x.shape[2:])
    return PoolProblem(
        direction="forward",
        operator=operator,
        batch=x.shape[0],
        channels=channels,
        in_size=pixels,
        kernel=tuple(kernel) or pixels,
        stride=tuple(stride) if kernel or stride else pixels,
        pad_begin=tuple(pad),
        pad_end=tuple(pad_end),
        rounding=rounding,
        count_padding=count_padding,
        dtype=x.dtype,
        layout=LAST if channels_last else FIRST,
        keep_nan=keep_nan,
    )


def _places(build: Build, problem: PoolProblem, x: Tensor, y: Tensor) -> Tensor:
    if x.dtype in SMALL:
        problem = replace(problem, dtype="float32")
        x, y = build.cast(x, "float32"), build.cast(y, "float32")
    return build.without_gradient(build.add(problem.with_direction("mask"), x, y)[0])


def places_in_tensor(build: Build, found: Tensor, size: Sizes, dtype: str, *, columns_first: bool = False) -> Tensor:
    """Return places in planes as those in the whole tensor, plane after plane.

    Parameters
    ----------
    found : Tensor
        As `pool_with_places` returns them.
    size : sequence of int
        Of a plane.
    dtype : str
        Of the result.
    columns_first : bool
        Whether the planes, of two axes, are counted column by column.
    """
    count = math.prod(found.shape[:2])
    begins = np.arange(count, dtype=dtype).reshape(*found.shape[:2], *(1,) * len(size)) * math.prod(size)
    text = "y0 = x0 + x1;"
    if columns_first:
        rows, columns = map(float, size)
        text = f"real r = floor(x0 / {columns!r}); y0 = (x0 - r * {columns!r}) * {rows!r} + r + x1;"
    return build.without_gradient(build.pointwise(text, [build.cast(found, dtype), build.constant(begins)])[0])


def unpooled(build: Build, x: Tensor, found: Tensor, size: Sizes) -> Tensor:
    """Return planes of zeros in which the elements of x stand at their places.

    Parameters
    ----------
    x : Tensor
        (n, c, ...).
    found : Tensor
        As `pool_with_places` returns them, of the shape of x: a negative one, or one beyond the plane, is none. Of
        equal places the last element counts in the result, and all of them get its gradient.
    size : sequence of int
        Of a plane of the result.
    """
    lines, count, extent = math.prod(x.shape[:2]), math.prod(x.shape[2:]), math.prod(size)
    first = build.here
    (inside,) = build.pointwise("y0 = x0 < 0 ? none : fmin(x0, none);", [found], {"none": float(extent)})
    index = build.cast(build.reshape(inside, (lines, count)), "int32")
    problem = ScatterProblem(lines, extent, 1, count, "rows", x.dtype, "set", onto_zero=True)
    (y,) = build.add(problem, index, x)

    def gradient(build: Build, dys: tuple[Tensor | None, ...], wanted: tuple[bool, ...]) -> tuple[Tensor | None, ...]:
        (dy,) = dys
        assert dy is not None
        (dx,) = build.add(GatherProblem(lines, extent, 1, count, "rows", x.dtype), dy, index)
        there = [build.reshape(inside, (lines, count)), build.reshape(dx, (lines, count))]
        (dx,) = build.pointwise("y0 = x0 < none ? x1 : 0;", there, {"none": float(extent)})
        return build.reshape(dx, x.shape), None

    build.state_gradient(first, (x, found), (y,), gradient)
    return build.reshape(y, (*x.shape[:2], *size))


def most_windows(levels: int) -> int:
    """Return the windows of an axis in the last level of `pyramid`."""
    return 2 ** (min(levels, LONGEST) - 1)


def pyramid(build: Build, x: Tensor, operator: str, levels: int) -> Tensor:
    """Return 1, 4, 16, ... windows of each plane side by side as rows (He et al. 2014); they begin where Caffe's do."""
    found = []
    for level in range(levels):
        count = 2**level
        kernel = tuple(ceil_div(size, count) for size in x.shape[2:])
        pad = tuple((k * count - size + 1) // 2 for k, size in zip(kernel, x.shape[2:]))
        y = pool(build, x, operator, kernel, stride=kernel, pad=pad, rounding="ceil_inside")
        found.append(build.reshape(y, (x.shape[0], y.size // x.shape[0])))
    return joined(build, found, 1) if levels > 1 else found[0]


def whole(build: Build, x: Tensor, operator: str, p: float = 2) -> Tensor:
    """Return the maximum, the average or the norm (``lp``, of a power p) of whole images, as a reduction."""
    kept = (*x.shape[:2], *(1,) * (x.ndim - 2))
    fold = (Reduction("max" if operator == "max" else "sum", shape=kept),)
    if operator == "max":
        return build.pointwise("y0 = x0;", [x], reduce=fold)[0]
    if operator == "average":
        (total,) = build.pointwise("y0 = x0;", [x], reduce=fold)
        return build.pointwise("y0 = x0 * share;", [total], {"share": 1 / math.prod(x.shape[2:])})[0]
    if p == 2:
        (total,) = build.pointwise("y0 = x0 * x0;", [x], reduce=fold)
        return build.pointwise("y0 = sqrt(x0);", [total])[0]
    (total,) = build.pointwise(f"y0 = pow(fabs(x0), {p});", [x], reduce=fold)
    return build.pointwise(f"y0 = pow(x0, {1 / p!r});", [total])[0]


def reaches(kernel: Sizes, dilate: Sizes) -> tuple[int, ...]:
    """Return the sizes of windows with their holes."""
    return tuple((k - 1) * d + 1 for k, d in zip(kernel, dilate))


def same_pads(size: Sizes, reach: Sizes, stride: Sizes, *, upper: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return padding before and after each axis that makes ceil(size / stride) windows.

    Parameters
    ----------
    size, reach, stride : sequence of int
        Of the input, the windows with their holes, and their distance.
    upper : bool
        Whether an odd element comes after.
    """
    begin, end = [], []
    for i, k, s in zip(size, reach, stride):
        total = max((ceil_div(i, s) - 1) * s + k - i, 0)
        less, more = total // 2, total - total // 2
        begin.append(less if upper else more)
        end.append(more if upper else less)
    return tuple(begin), tuple(end)


def pad_ends(size: Sizes, reach: Sizes, stride: Sizes, pad: Sizes, counts: Sizes) -> tuple[int, ...]:
    """Return the padding at the end of each axis that so many windows of a reach need."""
    each = zip(size, reach, stride, pad, counts)
    return tuple(max((count - 1) * s + k - i - p, 0) for i, k, s, p, count in each)


def beyond_factors(problem: PoolProblem) -> np.ndarray:
    """Return by what averages over whole windows are too small, where windows reach beyond the padded input.

    The factors have the size of a plane of the result.
    """
    factors = np.ones(())
    each = (problem.in_size, problem.kernel, problem.stride, problem.pad_begin, problem.pad_end, problem.out_size)
    for i, k, s, p, q, count in zip(*each):
        begins = np.arange(count) * s - p
        factors = factors[..., None] * (k / (np.minimum(begins + k, i + q) - begins))
    return factors


def unpooled_size(size: Sizes, kernel: Sizes, stride: Sizes, pad: Sizes, pad_end: Sizes) -> tuple[int, ...]:
    """Return the size of images whose pooling has a size: the smallest one."""
    return tuple((i - 1) * s + k - p - q for i, k, s, p, q in zip(size, kernel, stride, pad, pad_end))


def ends_within(size: Sizes, kernel: Sizes, stride: Sizes, pad: Sizes, pad_end: Sizes) -> tuple[int, ...]:
    """Return the padding at the end without what is read only by windows that start after the image.

    It is negative where elements of the image are left out, too.
    """
    ends = []
    for i, k, s, p, q in zip(size, kernel, stride, pad, pad_end):
        count = ceil_div(i + p + q - k, s) + 1
        ends.append((count - 2) * s + k - i - p if (count - 1) * s >= i + p else q)
    return tuple(ends)


def _within(
    build: Build, x: Tensor, kernel: Sizes, stride: Sizes, pad: Sizes, pad_end: Sizes, rounding: str
) -> tuple[Tensor, Sizes, str]:
    """Return x, the end padding and the rounding of a problem by which windows are counted as `rounding` says."""
    if rounding != CEIL_WITHIN:
        return x, pad_end, rounding
    ends = ends_within(x.shape[2:], kernel, stride, pad, pad_end)
    x = padded(build, x, (0,) * x.ndim, (0, 0, *(min(q, 0) for q in ends)))
    return x, tuple(max(q, 0) for q in ends), "ceil"


def pool_with_holes(
    build: Build,
    x: Tensor,
    operator: str,
    kernel: Sizes,
    *,
    stride: Sizes,
    dilate: Sizes,
    pad: Sizes,
    pad_end: Sizes,
    ceil: bool,
    count_padding: bool,
) -> Tensor:
    """Return pooling over windows with holes: a slice with steps for each element, folded element by element.

    Parameters
    ----------
    dilate : sequence of int
        Distances between elements of a window.
    ceil : bool
        Whether the last window may reach beyond the padded input, if it starts within the image or in front of it.

    Raises
    ------
    ValueError
        If there is no window.
    """
    size, ndim = x.shape[2:], len(kernel)
    reach, counts = reaches(kernel, dilate), []
    for i, r, s, p, q in zip(size, reach, stride, pad, pad_end):
        room = i + p + q - r
        count = (ceil_div(room, s) if ceil else room // s) + 1
        counts.append(count - (ceil and (count - 1) * s >= i + p))
    if min(counts) < 1:
        raise ValueError(f"windows of {reach} for {size}")
    extra = pad_ends(size, reach, stride, pad, counts)
    image = padded(build, x, (0, 0, *pad), (0, 0, *extra), -math.inf if operator == "max" else 0.0)

    def taps(value: Tensor) -> list[Tensor]:
        found = []
        shape, step = (*value.shape[:2], *counts), (1, 1, *stride)
        for tap in range(math.prod(kernel)):
            begin, rest = [], tap
            for k, d in zip(reversed(kernel), reversed(dilate)):
                begin.append(rest % k * d)
                rest //= k
            at = (0, 0, *reversed(begin))
            found.append(cut(build, value, shape, at, step))
        return found

    total = _folded(build, taps(image), operator)
    if operator == "max":
        return total
    if operator != "average":
        return build.pointwise(f"y0 = {ROOTS[operator]};", [total])[0]
    # what counts: the pixels, with `count_padding` the padding too, but never what lies beyond it
    sides = zip(size, pad, pad_end, extra)
    inside = tuple(i + p + min(q, e) for i, p, q, e in sides) if count_padding else tuple(size)
    ones = build.filled((1, 1, *inside), 1.0, x.dtype)
    beyond = [max(e - q, 0) if count_padding else e for e, q in zip(extra, pad_end)]
    weights = padded(build, ones, (0, 0, *((0,) * ndim if count_padding else pad)), (0, 0, *beyond))
    return build.pointwise("y0 = x0 / x1;", [total, _folded(build, taps(weights), "sum")])[0]


def _folded(build: Build, values: Sequence[Tensor], operator: str) -> Tensor:
    """Return the maximum or the sum of values, of their powers for a norm."""
    power = POWERS.get(operator, "{0}")
    total: Tensor | None = None
    for first in range(0, len(values), AT_ONCE):
        some = [*([total] if total is not None else []), *values[first : first + AT_ONCE]]
        texts = [f"x{i}" if total is not None and i == 0 else power.format(f"x{i}") for i in range(len(some))]
        text = " + ".join(texts)
        if operator == "max":
            text = texts[0]
            for other in texts[1:]:
                text = f"fmax({text}, {other})"
        (total,) = build.pointwise(f"y0 = {text};", some)
    assert total is not None
    return total


def adaptive_max_pool(
    build: Build, x: Tensor, sizes: Sizes, *, indices: bool = False, keep_nan: bool = False
) -> tuple[Tensor, ...]:
    """Return the maxima of windows that share an image out, and with `indices` where in its plane each one stands.

    Window i of an axis begins at floor(i * in / out) and ends in front of ceil((i + 1) * in / out), as PyTorch has it.
    Where each of them has in / out elements this is `pool`, otherwise `pool` of a copy with the windows side by side.

    Parameters
    ----------
    x : Tensor
        (n, c, ...) of one to three spatial axes.
    sizes : sequence of int
        Number of windows of each axis.
    indices : bool
        Whether the places are wanted, as numbers (of float32 for 16 bits); -1 where a window holds nothing.
    keep_nan : bool
        As of `pool`; a maximum that is NaN has no place.

    Raises
    ------
    ProblemError
        If there is no window, or one of more than 4096 of different sizes.
    """
    windows, problem, _ = _side_by_side(build, x, sizes, keep_nan)
    (y,) = build.add(problem, windows)
    return (y, _indices(build, problem, windows, y, x.shape[2:])) if indices else (y,)


def adaptive_max_pool_gradient(build: Build, dy: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return the gradient of `adaptive_max_pool`, which goes to the first maximum of each window."""
    windows, problem, moved = _side_by_side(build, x, y.shape[2:])
    (dx,) = build.add(problem.with_direction("backward"), windows, y, dy)
    for gather, index in reversed(moved):
        (gradient,) = gather.gradients()
        (dx,) = build.add(gradient.problem, index, dx)
    return build.reshape(dx, x.shape)


def _side_by_side(
    build: Build, x: Tensor, sizes: Sizes, keep_nan: bool = False
) -> tuple[Tensor, PoolProblem, list[tuple[GatherProblem, Tensor]]]:
    """Return x with its windows side by side, their pooling, and what was read by which index.

    Windows that are shorter than others repeat their last element, which changes neither a maximum nor the first one.
    """
    if len(sizes) != x.ndim - 2 or min(sizes) < 1:
        raise ProblemError(f"[pool] got output_size {tuple(sizes)}, expected {x.ndim - 2} numbers from 1")
    kernel, moved = [], []
    for axis, (size, count) in enumerate(zip(x.shape[2:], sizes), 2):
        taps = max(ceil_div((i + 1) * size, count) - i * size // count for i in range(count))
        kernel.append(taps)
        if size % count:
            outer, inner = x.shape[:axis], x.shape[axis + 1 :]
            gather = GatherProblem(math.prod(outer), size, math.prod(inner), count * taps, dtype=x.dtype)
            index = _read_places(build, size, count, taps)
            x = build.reshape(build.add(gather, x, index)[0], (*outer, count * taps, *inner))
            moved.append((gather, index))
    return x, pool_problem(x, "max", kernel, kernel, keep_nan=keep_nan), moved


def _read_places(build: Build, size: int, count: int, taps: int) -> Tensor:
    """Return the index that reads the windows of an axis one after the other."""
    if count**2 > EXACT:
        raise ProblemError(f"[pool] got output_size {count} for {size}, expected a divisor or at most {EXACT**0.5:.0f}")
    ones = build.filled((count * taps,), 1.0)
    (numbers,) = build.add(CumulativeProblem("sum", 1, count * taps, 1, exclusive=True), ones)
    (index,) = build.pointwise(f"{_origin('x0', size, count, taps)} y0 = x0_at;", [numbers])
    return build.reshape(build.cast(index, "int32"), (count * taps,))


def _indices(build: Build, problem: PoolProblem, windows: Tensor, y: Tensor, size: Sizes) -> Tensor:
    """Return where in its plane of a size each maximum stands, from where it stands among the windows."""
    found = _places(build, problem, windows, y)
    if tuple(size) == problem.in_size:
        return found
    texts, rest, stride, total = [], "x0", 1, "0"
    for axis in reversed(range(len(size))):
        texts.append(_divided_text(f"a{axis}", rest, problem.in_size[axis]))
        texts.append(_origin(f"a{axis}_rest", size[axis], problem.out_size[axis], problem.kernel[axis]))
        total += f" + a{axis}_rest_at * {stride}"
        rest, stride = f"a{axis}", stride * size[axis]
    (index,) = build.pointwise(f"{' '.join(texts)} y0 = x0 < 0 ? -1 : {total};", [found])
    return build.without_gradient(index)


def _origin(name: str, size: int, count: int, taps: int) -> str:
    """Return statements that set `name`_at to the element that a place among the windows of an axis repeats."""
    if size % count == 0:
        return f"real {name}_at = {name};"
    whole, left = divmod(size, count)
    window = f"{name}_w"
    return " ".join(
        (
            _divided_text(window, name, taps),
            _divided_text(f"{name}_first", f"({window} * {left})", count),
            _divided_text(f"{name}_last", f"({window} * {left} + {left - 1})", count),
            f"real {name}_at = {window} * {whole} + fmin({name}_first + {window}_rest, {name}_last + {whole});",
        )
    )


def _divided_text(name: str, number: str, divisor: int) -> str:
    """Return statements that set `name` to the quotient of whole numbers and `name`_rest to what is left.

    They are exact even where a device rounds quotients coarsely.
    """
    rest = f"({number} - {name}_near * {divisor})"
    return (
        f"real {name}_near = floor({number} / {divisor});"
        f" real {name} = {name}_near + ({rest} < 0 ? -1 : {rest} < {divisor} ? 0 : 1);"
        f" real {name}_rest = {number} - {name} * {divisor};"
    )
