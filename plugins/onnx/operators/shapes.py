"""Elements that only move: shapes, slices, joins, repetition and padding."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from clgraft.core.nn import shapes as nn
from clgraft.plugins.onnx.lowering import ModelBuilder, broadcast
from clgraft.plugins.onnx.nodes import OnnxNode, operator
from clgraft.plugins.onnx.operators.windows import padded
from clgraft.plugins.onnx.values import OnnxValue, known


def axis_of(axis: int, ndim: int) -> int:
    """Return an axis counted from the front."""
    if not -ndim <= axis < max(ndim, 1):
        raise ValueError(f"axis {axis} of {ndim} axes")
    return axis % max(ndim, 1)


def listed(on: ModelBuilder, node: OnnxNode, value: OnnxValue | None, name: str) -> list[int] | None:
    """Return whole numbers that are an attribute in older opsets and an input in newer ones."""
    if value is not None:
        return on.numbers(value)
    found = node.get(name)
    return None if found is None else [int(number) for number in found]


@operator("Constant", "ConstantOfShape", "Range", "EyeLike", "NonZero", "Unique", "Shape", "Size")
def folded(on: ModelBuilder, node: OnnxNode, *values: OnnxValue | None) -> list[OnnxValue]:
    """Fold a node on the host, whose inputs have to be known for that."""
    if node.operator == "EyeLike" and values[0] is not None:
        values = (known(np.zeros(values[0].shape, values[0].dtype)),)
    arrays = [None if value is None else known(on.host(value)) for value in values]
    return on.folded(node, arrays)


@operator("Reshape")
def reshape(on: ModelBuilder, node: OnnxNode, x: OnnxValue, shape: OnnxValue) -> OnnxValue:
    """Lower another shape: 0 keeps a size, -1 follows from the others."""
    wanted = on.numbers(shape)
    if not node.get("allowzero", 0):
        wanted = [x.shape[i] if size == 0 else size for i, size in enumerate(wanted)]
    return on.reshaped(x, nn.filled_up(wanted, x.size) if wanted.count(-1) == 1 else wanted)


@operator("Flatten")
def flatten(on: ModelBuilder, node: OnnxNode, x: OnnxValue) -> OnnxValue:
    """Lower a matrix of the axes before and from an axis."""
    axis = node.get("axis", 1)
    axis = axis + x.ndim if axis < 0 else axis
    return on.reshaped(x, nn.matrix_shape(x.shape, axis))


@operator("Squeeze")
def squeeze(on: ModelBuilder, node: OnnxNode, x: OnnxValue, axes: OnnxValue | None = None) -> OnnxValue:
    """Lower axes of size 1 that vanish."""
    given = listed(on, node, axes, "axes")
    gone = {axis_of(axis, x.ndim) for axis in given} if given is not None else set(range(x.ndim))
    if given is not None and any(x.shape[axis] != 1 for axis in gone):
        raise ValueError(f"axes {given} of shape {x.shape}")
    return on.reshaped(x, nn.without_ones(x.shape, gone))


@operator("Unsqueeze")
def unsqueeze(on: ModelBuilder, node: OnnxNode, x: OnnxValue, axes: OnnxValue | None = None) -> OnnxValue:
    """Lower new axes of size 1."""
    given = listed(on, node, axes, "axes") or []
    ndim = x.ndim + len(given)
    return on.reshaped(x, nn.with_ones(x.shape, [axis_of(axis, ndim) for axis in given]))


@operator("Transpose")
def transpose(on: ModelBuilder, node: OnnxNode, x: OnnxValue) -> OnnxValue:
    """Lower another order of axes."""
    return on.transposed(x, node.get("perm", list(reversed(range(x.ndim)))))


@operator("Concat")
def concat(on: ModelBuilder, node: OnnxNode, *values: OnnxValue) -> OnnxValue:
    """Lower tensors that are joined along an axis."""
    return joined(on, values, axis_of(node.get("axis", 1), values[0].ndim))


def joined(on: ModelBuilder, values: Sequence[OnnxValue], axis: int) -> OnnxValue:
    """Return values joined along an axis."""
    if len({(*v.shape[:axis], *v.shape[axis + 1 :]) for v in values}) != 1:
        raise ValueError(f"shapes {[v.shape for v in values]} along axis {axis}")
    parts = [value for value in values if value.size]
    if not parts:
        parts = list(values)[:1]
    if len(parts) == 1:
        return parts[0]
    carrier = on.widest(parts)
    return on.taken(nn.joined(on.build, [on.given(part, carrier) for part in parts], axis), values[0].dtype)


@operator("Split")
def split(on: ModelBuilder, node: OnnxNode, x: OnnxValue, sizes: OnnxValue | None = None) -> list[OnnxValue]:
    """Lower parts of an axis."""
    axis = axis_of(node.get("axis", 0), x.ndim)
    extents = listed(on, node, sizes, "split")
    if extents is None:
        count = int(node.get("num_outputs", len(node.outputs)))
        if count != len(node.outputs):
            raise ValueError(f"num_outputs {count} and {len(node.outputs)} outputs")
        extents = nn.parts_of(x.shape[axis], count=count)
    if sum(extents) != x.shape[axis] or min(extents) < 0 or len(extents) < len(node.outputs):
        raise ValueError(f"parts {extents} of shape {x.shape} along axis {axis}")
    if x.array is not None and not x.name:
        ends = itertools.accumulate(extents)
        return [known(np.take(x.array, range(end - extent, end), axis)) for end, extent in zip(ends, extents)]
    return [
        on.taken(part, x.dtype) if part.size else known(np.zeros(part.shape, x.dtype))
        for part in nn.split(on.build, on.given(x), axis, extents)
    ]


@operator("Slice")
def slices(on: ModelBuilder, node: OnnxNode, x: OnnxValue, *inputs: OnnxValue | None) -> OnnxValue:
    """Lower parts of axes, with steps of either sign."""
    given = [*inputs, None, None, None, None]
    starts, ends = (listed(on, node, value, name) for value, name in zip(given, ("starts", "ends")))
    axes = listed(on, node, given[2], "axes")
    steps = listed(on, node, given[3], "steps")
    if starts is None or ends is None:
        raise ValueError("no starts or no ends")
    axes = axes if axes is not None else list(range(len(starts)))
    steps = steps if steps is not None else [1] * len(starts)
    if not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps:
        raise ValueError(f"starts {starts}, ends {ends}, axes {axes}, steps {steps}")
    begin, step, shape = [0] * x.ndim, [1] * x.ndim, list(x.shape)
    for start, end, axis, stride in zip(starts, ends, axes, steps):
        axis = axis_of(axis, x.ndim)
        step[axis] = stride
        begin[axis], shape[axis] = nn.section(x.shape[axis], start, end, stride)
    return sliced(on, x, begin, shape, step)


def sliced(
    on: ModelBuilder, x: OnnxValue, begin: Sequence[int], shape: Sequence[int], step: Sequence[int] = ()
) -> OnnxValue:
    """Return a box of a value."""
    shape, step = tuple(shape), tuple(step) or (1,) * x.ndim
    if not math.prod(shape):
        return known(np.zeros(shape, x.dtype))
    if shape == x.shape and all(s == 1 or size == 1 for s, size in zip(step, shape)):
        return x
    step = tuple(1 if size == 1 else s for s, size in zip(step, shape))
    return on.taken(nn.cut(on.build, on.given(x), shape, begin, step), x.dtype)


@operator("Expand")
def expand(on: ModelBuilder, node: OnnxNode, x: OnnxValue, shape: OnnxValue) -> OnnxValue:
    """Lower broadcasting to a shape."""
    return expanded(on, x, broadcast([x.shape, tuple(on.numbers(shape))]))


def expanded(on: ModelBuilder, x: OnnxValue, shape: Sequence[int]) -> OnnxValue:
    """Return a value broadcast to a shape."""
    if not math.prod(shape):
        return known(np.zeros(shape, x.dtype))
    if x.size == math.prod(shape):
        return on.reshaped(x, shape)
    return on.taken(nn.broadcast(on.build, on.given(x), shape), x.dtype)


def repeated(on: ModelBuilder, x: OnnxValue, times: Sequence[int], whole: bool = True) -> OnnxValue:
    """Return a value repeated along its axes, whole or element by element."""
    if all(time == 1 for time in times):
        return x
    if not x.size or not math.prod(times):
        return known(np.zeros([size * time for size, time in zip(x.shape, times)], x.dtype))
    return on.taken(nn.repeated(on.build, on.given(x), times, whole=whole), x.dtype)


@operator("Tile")
def tile(on: ModelBuilder, node: OnnxNode, x: OnnxValue, repeats: OnnxValue) -> OnnxValue:
    """Lower repetition of whole axes."""
    return repeated(on, x, on.numbers(repeats))


@operator("Pad")
def pad(on: ModelBuilder, node: OnnxNode, x: OnnxValue, *inputs: OnnxValue | None) -> OnnxValue:
    """Lower padding with a constant, the edge, a mirror image or the other end."""
    given = [*inputs, None, None, None]
    amounts = listed(on, node, given[0], "pads")
    if amounts is None:
        raise ValueError("no pads")
    axes = on.numbers(given[2]) if given[2] is not None else list(range(x.ndim))
    if len(amounts) != 2 * len(axes):
        raise ValueError(f"pads {amounts} for axes {axes}")
    before, behind = [0] * x.ndim, [0] * x.ndim
    for i, axis in enumerate(axes):
        before[axis_of(axis, x.ndim)], behind[axis_of(axis, x.ndim)] = amounts[i], amounts[len(axes) + i]
    mode = node.get("mode", "constant")
    if mode == "constant":
        value = on.number(given[1]) if given[1] is not None else node.get("value", 0.0)
        return padded(on, x, before, behind, float(value))
    if mode == "wrap":
        for size, low, high in zip(x.shape, before, behind):
            node.expect(0 <= low <= size and 0 <= high <= size, f"pads {(low, high)} of mode wrap for a size of {size}")
        return on.taken(nn.wrapped(on.build, on.given(x), before, behind), x.dtype)
    node.expect(mode in ("edge", "reflect"), f"mode {mode}")
    node.expect(min((*before, *behind)) >= 0, f"negative pads of mode {mode}")
    return on.taken(nn.bordered(on.build, on.given(x), mode, before, behind), x.dtype)


@operator("DepthToSpace", "SpaceToDepth")
def depth_and_space(on: ModelBuilder, node: OnnxNode, x: OnnxValue) -> OnnxValue:
    """Lower channels that become pixels, or pixels that become channels: an order of axes."""
    moved = nn.blocks_to_channels if node.operator == "SpaceToDepth" else nn.channels_to_blocks
    pixel_first = node.get("mode", "DCR") == "DCR"
    return on.taken(moved(on.build, on.given(x), int(node.get("blocksize")), pixel_first=pixel_first), x.dtype)


@operator("Trilu")
def triangle(on: ModelBuilder, node: OnnxNode, x: OnnxValue, k: OnnxValue | None = None) -> OnnxValue:
    """Lower the upper or lower triangle of matrices: a choice by a constant mask."""
    diagonal = on.number(k) if k is not None else 0
    on.budget.expect("bytes", 8 * math.prod(x.shape[-2:]), node)
    return on.taken(nn.triangle(on.build, on.given(x), diagonal, upper=bool(node.get("upper", 1))), x.dtype)
