"""Elements by their index."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from clgraft.core.nn import indices as nn
from clgraft.core.nn import pooling
from clgraft.core.nn.builder import Tensor
from clgraft.core.operators.pointwise import Reduction
from clgraft.plugins.onnx.lowering import IndexCheck, ModelBuilder
from clgraft.plugins.onnx.nodes import OnnxNode, operator
from clgraft.plugins.onnx.operators.shapes import axis_of, sliced
from clgraft.plugins.onnx.values import OnnxValue, known

COMBINED = {"none": "set", "add": "add", "mul": "mul", "max": "max", "min": "min"}


def expect_inside(on: ModelBuilder, node: OnnxNode, index: OnnxValue, sizes: tuple[int, ...], low: bool = True) -> None:
    """Refuse indices out of range: now if they are known, or in every run if they are an input of the model.

    Parameters
    ----------
    index : OnnxValue
        With more than one size its last axis holds an index for each.
    sizes : tuple of int
        Of the axes.
    low : bool
        Whether negative indices count from the end.
    """
    if not index.size:
        return
    check = IndexCheck(str(node), sizes, low)
    if index.array is not None:
        check(index.array)
    else:
        on.check_input(index, check)


def gathered(
    on: ModelBuilder,
    x: OnnxValue,
    index: OnnxValue,
    axis: int,
    shape: tuple[int, ...],
    count: int,
    sharing: str = "shared",
) -> OnnxValue:
    """Return elements of an axis by their index, in a shape."""
    if not math.prod(shape):
        return known(np.zeros(shape, x.dtype))
    found = nn.gathered(on.build, on.given(x), _index(on, index), axis, shape, count=count, sharing=sharing)
    return on.taken(found, x.dtype)


def _index(on: ModelBuilder, index: OnnxValue) -> Tensor:
    return Tensor(on.index(index), index.shape, "int32")


def scattered(
    on: ModelBuilder,
    x: OnnxValue | None,
    index: OnnxValue,
    updates: OnnxValue,
    sizes: Sequence[int],
    shape: tuple[int, ...],
    count: int,
    **how: str,
) -> OnnxValue:
    """Return x, or zeros, with updates at their places, in a shape; the words are those of `indices.scattered`."""
    like = updates if x is None else x
    given, into = on.given(updates, on.carrier(like)), None if x is None else on.given(x)
    y = nn.scattered(on.build, given, _index(on, index), sizes, shape, count=count, into=into, **how)
    return on.taken(y, like.dtype)


@operator("Gather")
def gather(on: ModelBuilder, node: OnnxNode, x: OnnxValue, index: OnnxValue) -> OnnxValue:
    """Lower slices of an axis by their index."""
    axis = axis_of(node.get("axis", 0), x.ndim)
    shape = (*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])
    expect_inside(on, node, index, (x.shape[axis],))
    if index.array is not None and index.size == 1:
        begin = [int(index.array.reshape(-1)[0]) % size if i == axis else 0 for i, size in enumerate(x.shape)]
        part = sliced(on, x, begin, [1 if i == axis else size for i, size in enumerate(x.shape)])
        return on.reshaped(part, shape)
    return gathered(on, x, index, axis, shape, index.size)


@operator("GatherElements")
def gather_elements(on: ModelBuilder, node: OnnxNode, x: OnnxValue, index: OnnxValue) -> OnnxValue:
    """Lower elements by an index of their own."""
    axis = axis_of(node.get("axis", 0), x.ndim)
    if x.ndim != index.ndim:
        raise ValueError(f"index of shape {index.shape} for {x.shape}")
    expect_inside(on, node, index, (x.shape[axis],))
    shape = [x.shape[axis] if i == axis else size for i, size in enumerate(index.shape)]
    x = sliced(on, x, [0] * x.ndim, shape)
    return gathered(on, x, index, axis, index.shape, index.shape[axis], "elements")


def flat_index(on: ModelBuilder, node: OnnxNode, index: OnnxValue, sizes: tuple[int, ...]) -> OnnxValue:
    """Return one index for the tuples on the last axis, into an array of some sizes; from the front."""
    if len(sizes) != index.shape[-1]:
        raise ValueError(f"index of shape {index.shape} for axes {sizes}")
    expect_inside(on, node, index, sizes)
    tables = [known(np.array(numbers, np.int64)) for numbers in (sizes, nn.strides(sizes))]
    shape = index.shape[:-1]
    if index.array is not None:
        return known(nn.places_of(index.array, sizes))
    if len(sizes) == 1:
        return on.reshaped(on.pointwise(nn.STEP, [index, *tables], "int64"), shape)
    fold = (Reduction("sum", shape=(*shape, 1)),)
    return on.reshaped(on.pointwise(nn.STEP, [index, *tables], "int64", reductions=fold, shape=(*shape, 1)), shape)


@operator("GatherND")
def gather_slices(on: ModelBuilder, node: OnnxNode, x: OnnxValue, index: OnnxValue) -> OnnxValue:
    """Lower slices by tuples of indices."""
    batches, depth = int(node.get("batch_dims", 0)), index.shape[-1]
    sizes = x.shape[batches : batches + depth]
    shape = (*index.shape[:-1], *x.shape[batches + depth :])
    flat = flat_index(on, node, index, sizes)
    batch = math.prod(x.shape[:batches])
    wide = on.reshaped(x, (batch, math.prod(sizes), math.prod(x.shape[batches + depth :])))
    count = math.prod(index.shape[batches:-1])
    return gathered(on, wide, flat, 1, shape, count, "rows" if batches else "shared")


@operator("ScatterND")
def scatter_slices(on: ModelBuilder, node: OnnxNode, x: OnnxValue, index: OnnxValue, updates: OnnxValue) -> OnnxValue:
    """Lower slices that take in updates, by tuples of indices."""
    depth = index.shape[-1]
    if not updates.size:
        return x
    sizes = x.shape[:depth]
    extents, count = (1, math.prod(sizes), math.prod(x.shape[depth:])), math.prod(index.shape[:-1])
    flat = flat_index(on, node, index, sizes)
    return scattered(on, x, flat, updates, extents, x.shape, count, combine=COMBINED[node.get("reduction", "none")])


@operator("ScatterElements", "Scatter")
def scatter_elements(on: ModelBuilder, node: OnnxNode, x: OnnxValue, index: OnnxValue, updates: OnnxValue) -> OnnxValue:
    """Lower elements that take in updates, by an index of their own."""
    axis = axis_of(node.get("axis", 0), x.ndim)
    if not updates.size:
        return x
    if index.ndim != x.ndim or index.shape != updates.shape:
        raise ValueError(f"index of shape {index.shape} and updates of {updates.shape} for {x.shape}")
    expect_inside(on, node, index, (x.shape[axis],))
    how = COMBINED[node.get("reduction", "none")]
    if all(i == axis or size == x.shape[i] for i, size in enumerate(index.shape)):
        sizes = math.prod(x.shape[:axis]), x.shape[axis], math.prod(x.shape[axis + 1 :])
        return scattered(on, x, index, updates, sizes, x.shape, index.shape[axis], sharing="elements", combine=how)
    rest = known(nn.places_without(axis, index.shape, x.shape))
    index = on.pointwise(nn.place(x.shape[axis], nn.strides(x.shape)[axis]), [index, rest], "int64")
    return scattered(on, x, index, updates, (1, x.size, 1), x.shape, index.size, combine=how)


@operator("OneHot")
def one_hot(on: ModelBuilder, node: OnnxNode, index: OnnxValue, depth: OnnxValue, values: OnnxValue) -> OnnxValue:
    """Lower vectors that hold one value at their index, and another one elsewhere."""
    count = int(on.number(depth))
    on.make_room(8 * count)
    axis = axis_of(node.get("axis", -1), index.ndim + 1)
    wide = on.reshaped(index, (*index.shape[:axis], 1, *index.shape[axis:]))
    places = known(nn.places_along(count, index.ndim - axis))
    off, hot = (sliced(on, values, [i], [1]) for i in range(2))
    compute = on.widest([wide, places, values])
    return on.pointwise(nn.one_hot(count), [wide, places, hot, off], values.dtype, compute)


@operator("Compress")
def compress(on: ModelBuilder, node: OnnxNode, x: OnnxValue, condition: OnnxValue) -> OnnxValue:
    """Lower the slices for which a condition holds, which has to be known."""
    axis = node.get("axis")
    if axis is None:
        x, axis = on.reshaped(x, (x.size,)), 0
    axis = axis_of(axis, x.ndim)
    chosen = np.flatnonzero(on.host(condition)[: x.shape[axis]])
    shape = (*x.shape[:axis], len(chosen), *x.shape[axis + 1 :])
    return gathered(on, x, known(chosen.astype(np.int64)), axis, shape, len(chosen))


@operator("ReverseSequence")
def reverse_sequence(on: ModelBuilder, node: OnnxNode, x: OnnxValue, lengths: OnnxValue) -> OnnxValue:
    """Lower the first elements of each row in reversed order."""
    batch_axis, time_axis = int(node.get("batch_axis", 1)), int(node.get("time_axis", 0))
    times = x.shape[time_axis]
    counts = on.numbers(lengths)
    if not all(0 <= n <= times for n in counts):
        raise ValueError(f"lengths {counts[:8]} of sequences of {times}")
    if batch_axis == 0:
        return gathered(on, x, known(nn.reversed_first(counts, times)), 1, x.shape, times, "rows")
    table = nn.reversed_first(counts, times, columns=math.prod(x.shape[2:]))
    return gathered(on, x, known(table), 0, x.shape, times, "elements")


@operator("MaxUnpool")
def unpool(
    on: ModelBuilder, node: OnnxNode, x: OnnxValue, index: OnnxValue, size: OnnxValue | None = None
) -> OnnxValue:
    """Lower elements that return to their places in a larger tensor of zeros."""
    ndim = x.ndim - 2
    kernel, strides = node.get("kernel_shape"), node.get("strides", [1] * ndim)
    pads = node.get("pads", [0] * 2 * ndim)
    own = (*x.shape[:2], *pooling.unpooled_size(x.shape[2:], kernel, strides, pads[:ndim], pads[ndim:]))
    shape = tuple(on.numbers(size)) if size is not None else own
    expect_inside(on, node, index, (math.prod(own),), low=False)
    if shape != own:  # indices are of the tensor that the attributes say, at the front of each axis
        index = known(nn.moved_places(on.host(index), own, shape))
    return scattered(on, None, index, x, (1, math.prod(shape), 1), shape, x.size)


@operator("Col2Im")
def columns_to_image(on: ModelBuilder, node: OnnxNode, x: OnnxValue, image: OnnxValue, block: OnnxValue) -> OnnxValue:
    """Lower windows whose elements are added up at their pixels."""
    sizes, kernel = on.numbers(image), on.numbers(block)
    ndim = len(sizes)
    dilate, stride = node.get("dilations", [1] * ndim), node.get("strides", [1] * ndim)
    pads = node.get("pads", [0] * 2 * ndim)
    counts = nn.window_counts(sizes, pooling.reaches(kernel, dilate), stride, pads[:ndim], pads[ndim:])
    on.make_room(64 * math.prod((*kernel, *counts)))
    way = {"stride": stride, "dilate": dilate, "pad": pads[:ndim], "counts": counts}
    table = nn.window_places(sizes, kernel, **way).reshape(-1)
    extents, shape = nn.images_of_columns(x.shape, sizes, kernel)
    return scattered(on, None, known(table), x, extents, shape, table.size, combine="add")
