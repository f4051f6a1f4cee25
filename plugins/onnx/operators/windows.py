"""Convolutions, deconvolutions and pooling."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from clgraft.core.operators.conv import ConvProblem
from clgraft.core.operators.copying import SliceProblem
from clgraft.core.operators.deconvolution import DeconvProblem
from clgraft.core.operators.pointwise import Reduction
from clgraft.core.operators.pooling import PoolProblem
from clgraft.core.problem import ceil_div
from clgraft.plugins.onnx.lowering import Lowering
from clgraft.plugins.onnx.nodes import Node, operator
from clgraft.plugins.onnx.values import Value, known

MOST_AXES = 3


def spatial(node: Node, x: Value) -> tuple[int, ...]:
    """Return the spatial sizes of (batch, channels, ...)."""
    node.expect(3 <= x.ndim <= 2 + MOST_AXES, f"{x.ndim - 2} spatial axes")
    node.expect(x.is_real, f"type {x.dtype}")
    return x.shape[2:]


def ints(node: Node, name: str, count: int, default: int) -> tuple[int, ...]:
    """Return an attribute of one number per axis."""
    values = tuple(int(value) for value in node.get(name, [default] * count))
    if len(values) != count:
        raise ValueError(f"{name} {values}, expected {count} numbers")
    return values


def pads(node: Node, size: Sequence[int], reach: Sequence[int], stride: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Return the padding before and after the elements of each axis.

    Parameters
    ----------
    size, reach, stride : sequence of int
        Of the input, the dilated windows, and their distance.
    """
    mode = node.get("auto_pad", "NOTSET")
    if mode == "VALID":
        return (0,) * len(size), (0,) * len(size)
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        before, behind = [], []
        for i, k, s in zip(size, reach, stride):
            total = max((ceil_div(i, s) - 1) * s + k - i, 0)
            less, more = total // 2, total - total // 2
            before.append(less if mode == "SAME_UPPER" else more)
            behind.append(more if mode == "SAME_UPPER" else less)
        return tuple(before), tuple(behind)
    node.expect(mode in ("NOTSET", ""), f"auto_pad {mode}")
    both = ints(node, "pads", 2 * len(size), 0)
    return both[: len(size)], both[len(size) :]


def padded(on: Lowering, x: Value, before: Sequence[int], behind: Sequence[int], value: float = 0.0) -> Value:
    """Return a value with a constant around it; negative padding cuts elements off."""
    for sign in (-1, 1):
        low, high = ([max(sign * p, 0) for p in side] for side in (before, behind))
        if not any(low) and not any(high):
            continue
        carrier = on.carrier(x)
        if sign < 0:
            shape = tuple(size - a - b for size, a, b in zip(x.shape, low, high))
            (name,) = on.add(SliceProblem("forward", x.shape, shape, tuple(low), carrier), on.tensor(x))
        else:
            shape = tuple(size + a + b for size, a, b in zip(x.shape, low, high))
            problem = SliceProblem("backward", shape, x.shape, tuple(low), carrier)
            (name,) = on.add(problem, on.tensor(x), scalars={"value": float(value)})
        x = on.made(name, shape, x.dtype, carrier)
    return x


@operator("Conv")
def convolution(on: Lowering, node: Node, x: Value, w: Value, b: Value | None = None) -> Value:
    """Lower a convolution."""
    size = spatial(node, x)
    ndim = len(size)
    kernel = w.shape[2:]
    if len(kernel) != ndim or tuple(node.get("kernel_shape", kernel)) != kernel:
        raise ValueError(f"kernel_shape {node.get('kernel_shape')} for weights of shape {w.shape}")
    stride, dilate = ints(node, "strides", ndim, 1), ints(node, "dilations", ndim, 1)
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilate)]
    before, behind = pads(node, size, reach, stride)
    cut = ((0, 0, *(min(p, 0) for p in before)), (0, 0, *(min(p, 0) for p in behind)))
    x = padded(on, x, *cut)
    groups = int(node.get("group", 1))
    if w.shape[1] * groups != x.shape[1]:
        raise ValueError(f"weights of shape {w.shape} in {groups} groups for {x.shape[1]} channels")
    problem = ConvProblem(
        direction="forward",
        batch=x.shape[0],
        in_channels=x.shape[1],
        out_channels=w.shape[0],
        in_size=x.shape[2:],
        kernel=kernel,
        stride=stride,
        pad_begin=tuple(max(p, 0) for p in before),
        pad_end=tuple(max(p, 0) for p in behind),
        dilate=dilate,
        groups=groups,
        bias=b is not None,
        dtype=x.dtype,
    )
    (name,) = on.add(problem, on.tensor(x), on.tensor(w), *([on.tensor(b)] if b is not None else []))
    return on.made(name, problem.arguments()[-1].shape, x.dtype)


@operator("ConvTranspose")
def deconvolution(on: Lowering, node: Node, x: Value, w: Value, b: Value | None = None) -> Value:
    """Lower a deconvolution: without padding, whose share of the result is then cut off, or filled up with the bias."""
    size = spatial(node, x)
    ndim, kernel, groups = len(size), w.shape[2:], int(node.get("group", 1))
    if len(kernel) != ndim or w.shape[0] != x.shape[1]:
        raise ValueError(f"weights of shape {w.shape} for {x.shape}")
    stride, dilate = ints(node, "strides", ndim, 1), ints(node, "dilations", ndim, 1)
    extra = ints(node, "output_padding", ndim, 0)
    full = [(i - 1) * s + (k - 1) * d + 1 for i, s, k, d in zip(size, stride, kernel, dilate)]
    before, behind = _deconvolution_pads(node, size, stride, full, extra)
    after = tuple(e - q for e, q in zip(extra, behind))  # elements more, or less, than the full result
    channels = w.shape[1] * groups
    plain = all(p >= 0 for p in before) and all(a <= 0 for a in after)
    wide = tuple(p >= f or -a >= f for p, a, f in zip(before, after, full))
    if any(wide):
        raise ValueError(f"pads {before} and {behind} for a result of {full}")
    problem = DeconvProblem(
        direction="forward",
        batch=x.shape[0],
        in_channels=x.shape[1],
        out_channels=channels,
        in_size=size,
        kernel=kernel,
        stride=stride,
        pad_begin=before if plain else (0,) * ndim,
        pad_end=tuple(-a for a in after) if plain else (0,) * ndim,
        dilate=dilate,
        groups=groups,
        bias=b is not None and plain,
        dtype=x.dtype,
    )
    add_bias = [on.tensor(b)] if b is not None and plain else []
    (name,) = on.add(problem, on.tensor(x), on.tensor(w), *add_bias)
    y = on.made(name, problem.arguments()[-1].shape, x.dtype)
    if plain:
        return y
    y = padded(on, y, (0, 0, *(-p for p in before)), (0, 0, *after))
    if b is None:
        return y
    return on.pointwise("x0 + x1", [y, on.reshaped(b, (channels, *(1,) * ndim))])


def _deconvolution_pads(
    node: Node, size: Sequence[int], stride: Sequence[int], full: Sequence[int], extra: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the padding of a deconvolution, also where the wanted size or a mode gives it."""
    mode = node.get("auto_pad", "NOTSET")
    wanted = node.get("output_shape")
    if wanted is not None:
        wanted = wanted[-len(size) :]
    elif mode in ("SAME_UPPER", "SAME_LOWER"):
        wanted = [i * s for i, s in zip(size, stride)]
    if wanted is None:
        if mode == "VALID":
            return (0,) * len(size), (0,) * len(size)
        both = ints(node, "pads", 2 * len(size), 0)
        return both[: len(size)], both[len(size) :]
    total = [f + e - o for f, e, o in zip(full, extra, wanted)]
    less, more = [t // 2 for t in total], [t - t // 2 for t in total]
    return (tuple(less), tuple(more)) if mode == "SAME_UPPER" else (tuple(more), tuple(less))


@operator("MaxPool", "AveragePool", "LpPool")
def pooling(on: Lowering, node: Node, x: Value) -> Value | tuple[Value, ...]:
    """Lower pooling over windows."""
    if node.operator == "LpPool" or x.is_real:
        spatial(node, x)
    size = x.shape[2:]
    ndim = len(size)
    kernel = ints(node, "kernel_shape", ndim, 1)
    stride, dilate = ints(node, "strides", ndim, 1), ints(node, "dilations", ndim, 1)
    if min((*kernel, *stride, *dilate)) < 1:
        raise ValueError(f"windows of {kernel}, strides {stride} and dilations {dilate}")
    reach = tuple((k - 1) * d + 1 for k, d in zip(kernel, dilate))
    before, behind = pads(node, size, reach, stride)
    ceil = bool(node.get("ceil_mode", 0))
    name = {"MaxPool": "max", "AveragePool": "average"}.get(node.operator, f"lp{node.get('p', 2)}")
    node.expect(node.operator != "LpPool" or node.get("p", 2) in (1, 2, 3), f"p {node.get('p', 2)}")
    if node.operator == "LpPool" and node.get("p", 2) != 2:
        x = on.pointwise("fabs(x0)", [x])
    count_padding = node.operator != "AveragePool" or bool(node.get("count_include_pad", 0))
    if set(dilate) != {1}:
        node.expect(not node.wants(1), "indices of dilated windows")
        return _dilated(on, node, x, name, (kernel, stride, dilate, before, behind), ceil, count_padding)
    wide = any(p >= k for p, k in zip(before, kernel)) and name in ("max", "average")
    if wide or any(p < 0 for p in (*before, *behind)):
        raise node.refuse(f"pads {before} and {behind} of windows of {kernel}")
    if ceil:
        x, behind = _trimmed(on, x, kernel, stride, before, behind)
    problem = PoolProblem(
        direction="forward",
        operator=name,
        batch=x.shape[0],
        channels=x.shape[1],
        in_size=x.shape[2:],
        kernel=kernel,
        stride=stride,
        pad_begin=before,
        pad_end=behind,
        rounding="ceil" if ceil else "floor",
        count_padding=count_padding,
        dtype=on.carrier(x),
    )
    (result,) = on.add(problem, on.tensor(x))
    y = on.made(result, problem.arguments()[-1].shape, x.dtype, on.carrier(x))
    return (y, _places(on, node, problem, x, y, size)) if node.wants(1) else y


def _trimmed(
    on: Lowering,
    x: Value,
    kernel: Sequence[int],
    stride: Sequence[int],
    before: Sequence[int],
    behind: Sequence[int],
) -> tuple[Value, tuple[int, ...]]:
    """Return x and its padding, without what is read only by windows that start after the image: these do not count."""
    ends = []
    for i, k, s, p, q in zip(x.shape[2:], kernel, stride, before, behind):
        count = ceil_div(i + p + q - k, s) + 1
        ends.append((count - 2) * s + k - i - p if (count - 1) * s >= i + p else q)
    x = padded(on, x, (0,) * x.ndim, (0, 0, *(min(q, 0) for q in ends)))
    return x, tuple(max(q, 0) for q in ends)


def _places(on: Lowering, node: Node, problem: PoolProblem, x: Value, y: Value, size: Sequence[int]) -> Value:
    """Return the index of each maximum in the whole tensor, row by row or column by column."""
    (mask,) = on.add(problem.with_direction("mask"), on.tensor(x), on.tensor(y))
    planes, pixels = y.shape[0] * y.shape[1], math.prod(size)
    node.expect(tuple(size) == x.shape[2:], "indices where windows begin behind the image")
    base = known((np.arange(planes, dtype=np.int64) * pixels).reshape(*y.shape[:2], *(1,) * len(size)))
    place = on.made(mask, y.shape, "int64", on.carrier(x))
    if not node.get("storage_order", 0):
        return on.pointwise("x0 + x1", [place, base], "int64")
    node.expect(len(size) == 2, f"column-major indices of {len(size)} axes")
    rows, columns = float(size[0]), float(size[1])
    text = f"real r = floor(x0 / {columns!r}); y0 = (x0 - r * {columns!r}) * {rows!r} + r + x1;"
    return on.pointwise(text, [place, base], "int64")


def _dilated(
    on: Lowering,
    node: Node,
    x: Value,
    name: str,
    windows: tuple[tuple[int, ...], ...],
    ceil: bool,
    count_padding: bool,
) -> Value:
    """Lower windows with holes: a slice with steps for each element of a window, folded element by element."""
    kernel, stride, dilate, before, behind = windows
    size, ndim = x.shape[2:], len(kernel)
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilate)]
    counts = []
    for i, r, s, p, q in zip(size, reach, stride, before, behind):
        room = i + p + q - r
        count = (ceil_div(room, s) if ceil else room // s) + 1
        counts.append(count - (ceil and (count - 1) * s >= i + p))
    if min(counts) < 1:
        raise ValueError(f"windows of {reach} for {size}")
    extra = [max((c - 1) * s + r - i - p, 0) for c, s, r, i, p in zip(counts, stride, reach, size, before)]
    taps = math.prod(kernel)
    node.expect(taps <= 128, f"dilated windows of {taps} elements")
    fill = -math.inf if name == "max" else 0.0
    whole = padded(on, x, (0, 0, *before), (0, 0, *extra), fill)
    inside = None
    if name == "average":
        # what counts: the pixels, with count_include_pad the padding too, but never what lies beyond it
        on.make_room(8 * math.prod(i + p + q for i, p, q in zip(size, before, extra)))
        ones = known(np.ones((1, 1, *size), x.dtype))
        beyond = [e if not count_padding else max(e - q, 0) for e, q in zip(extra, behind)]
        if count_padding:
            sides = zip(size, before, behind, extra)
            ones = known(np.ones((1, 1, *(i + p + min(q, e) for i, p, q, e in sides)), x.dtype))
        inside = padded(on, ones, (0, 0, *((0,) * ndim if count_padding else before)), (0, 0, *beyond))
    parts = [_taps(on, value, kernel, stride, dilate, counts) for value in (whole, inside) if value is not None]
    total = _folded(on, parts[0], "max" if name == "max" else "sum", name)
    if name == "max":
        return total
    if name == "average":
        return on.pointwise("x0 / x1", [total, _folded(on, parts[1], "sum", "")])
    return on.pointwise({"lp1": "x0", "lp2": "sqrt(x0)", "lp3": "cbrt(x0)"}[name], [total])


def _taps(
    on: Lowering,
    x: Value,
    kernel: Sequence[int],
    stride: Sequence[int],
    dilate: Sequence[int],
    counts: Sequence[int],
) -> list[Value]:
    """Return what each element of the windows sees."""
    found = []
    shape, step = (*x.shape[:2], *counts), (1, 1, *stride)
    for tap in range(math.prod(kernel)):
        begin, rest = [], tap
        for k, d in zip(reversed(kernel), reversed(dilate)):
            begin.append(rest % k * d)
            rest //= k
        at = (0, 0, *reversed(begin))
        (name,) = on.add(SliceProblem("forward", x.shape, shape, at, on.carrier(x), step), on.tensor(x))
        found.append(on.made(name, shape, x.dtype, on.carrier(x)))
    return found


def _folded(on: Lowering, values: Sequence[Value], how: str, name: str) -> Value:
    """Return the maximum or the sum of values, of their powers for a norm."""
    power = {"lp2": "{0} * {0}", "lp3": "{0} * {0} * {0}"}.get(name, "{0}")
    total = None
    for first in range(0, len(values), 8):
        some = [*([total] if total is not None else []), *values[first : first + 8]]
        texts = [f"x{i}" if total is not None and i == 0 else power.format(f"x{i}") for i in range(len(some))]
        text = " + ".join(texts)
        if how == "max":
            text = texts[0]
            for other in texts[1:]:
                text = f"fmax({text}, {other})"
        total = on.pointwise(text, some)
    assert total is not None
    return total


@operator("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def global_pooling(on: Lowering, node: Node, x: Value) -> Value:
    """Lower pooling over whole images."""
    shape = (*x.shape[:2], *(1,) * (x.ndim - 2))
    pixels = math.prod(x.shape[2:])
    if node.operator == "GlobalMaxPool":
        return on.pointwise("x0", [x], reductions=(Reduction("max", shape=shape),), shape=shape)
    total = (Reduction("sum", shape=shape),)
    if node.operator == "GlobalAveragePool":
        y = on.pointwise("x0", [x], reductions=total, shape=shape)
        return on.pointwise(f"x0 * {1 / pixels!r}", [y])
    p = node.get("p", 2)
    y = on.pointwise("x0 * x0" if p == 2 else f"pow(fabs(x0), {p})", [x], reductions=total, shape=shape)
    return on.pointwise("sqrt(x0)" if p == 2 else f"pow(x0, {1 / p!r})", [y])
