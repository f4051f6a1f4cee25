"""Reductions over axes, softmax, and the places of extrema."""

from __future__ import annotations

import math

import numpy as np

from clgraft.core.nn import softmax as nn
from clgraft.core.nn.ordering import first_elements
from clgraft.core.nn.reductions import FOLDS, Fold, kept_shape, of_nothing
from clgraft.core.nn.reductions import cumulative as cumulative_of
from clgraft.core.nn.reductions import log_of_exponentials as log_of_exponentials_of
from clgraft.core.nn.whole_numbers import truncated
from clgraft.core.operators.pointwise import Reduction
from clgraft.plugins.onnx.lowering import ModelBuilder
from clgraft.plugins.onnx.nodes import OnnxNode, operator
from clgraft.plugins.onnx.operators.shapes import axis_of, listed
from clgraft.plugins.onnx.values import OnnxValue, known

# operator -> reduction of `core.nn.reductions`
REDUCTIONS = {
    "ReduceSum": "sum",
    "ReduceMean": "mean",
    "ReduceMax": "max",
    "ReduceMin": "min",
    "ReduceProd": "product",
    "ReduceL1": "absolute",
    "ReduceL2": "length",
    "ReduceSumSquare": "squares",
    "ReduceLogSum": "log_sum",
}


def reduced_axes(on: ModelBuilder, node: OnnxNode, x: OnnxValue, axes: OnnxValue | None) -> set[int] | None:
    """Return the axes of a reduction; None if nothing is reduced."""
    given = listed(on, node, axes, "axes")
    if not given:
        return None if node.get("noop_with_empty_axes", 0) else set(range(x.ndim))
    return {axis_of(axis, x.ndim) for axis in given}


def reduced(on: ModelBuilder, x: OnnxValue, axes: set[int], fold: Fold) -> OnnxValue:
    """Return the elements of x folded over axes that stay as 1."""
    shape = kept_shape(x.shape, axes)
    if shape == x.shape:
        return on.pointwise(fold.element, [x])
    return on.pointwise(fold.element, [x], reductions=(Reduction(fold.operation, shape=shape),), shape=shape)


@operator(*REDUCTIONS)
def reduction(on: ModelBuilder, node: OnnxNode, x: OnnxValue, axes: OnnxValue | None = None) -> OnnxValue:
    """Lower a reduction."""
    fold, gone = FOLDS[REDUCTIONS[node.operator]], reduced_axes(on, node, x, axes)
    if gone is None:  # the element's own expressions, with nothing to fold
        if fold.keeps_one:
            return x
        y, after = on.pointwise(fold.element, [x]), fold.finished(1)
        return on.pointwise(after, [y]) if after else y
    final = kept_shape(x.shape, gone, bool(node.get("keepdims", 1)))
    if not x.size:
        return known(np.full(final, of_nothing(REDUCTIONS[node.operator], x.dtype), x.dtype))
    y, after = reduced(on, x, gone, fold), fold.finished(math.prod(x.shape[axis] for axis in gone))
    if after:
        y = on.pointwise(after if x.is_real else truncated(after), [y])
    return on.reshaped(y, final)


@operator("ReduceLogSumExp")
def log_of_exponentials(on: ModelBuilder, node: OnnxNode, x: OnnxValue, axes: OnnxValue | None = None) -> OnnxValue:
    """Lower the logarithm of a sum of exponentials."""
    gone = reduced_axes(on, node, x, axes)
    if gone is None:
        return x
    final = kept_shape(x.shape, gone, bool(node.get("keepdims", 1)))
    if not x.size:
        return known(np.full(final, of_nothing("log_sum", x.dtype), x.dtype))
    if kept_shape(x.shape, gone) == x.shape:
        return on.reshaped(x, final)
    return on.reshaped(on.taken(log_of_exponentials_of(on.build, on.given(x), gone), x.dtype), final)


@operator("Softmax", "LogSoftmax", "Hardmax")
def softmax(on: ModelBuilder, node: OnnxNode, x: OnnxValue) -> OnnxValue:
    """Lower a softmax: of one axis, or up to opset 12 of all axes from one on."""
    old = node.opset < 13
    axis = axis_of(node.get("axis", 1 if old else -1), x.ndim)
    sizes = nn.around_all_from(x.shape, axis) if old else nn.around(x.shape, axis)
    if node.operator == "Hardmax":
        return on.taken(nn.hardmax(on.build, on.given(x), sizes), x.dtype)
    return on.taken(nn.softmax(on.build, on.given(x), sizes, log=node.operator == "LogSoftmax"), x.dtype)


@operator("ArgMax", "ArgMin")
def place_of_extremum(on: ModelBuilder, node: OnnxNode, x: OnnxValue) -> OnnxValue:
    """Lower the index of the greatest or smallest element of an axis."""
    axis = axis_of(node.get("axis", 0), x.ndim)
    last, smallest = bool(node.get("select_last_index", 0)), node.operator == "ArgMin"
    _, places = first_elements(on.build, on.given(x), axis, 1, smallest=smallest, last=last)
    return on.reshaped(on.taken(places, "int64"), kept_shape(x.shape, {axis}, bool(node.get("keepdims", 1))))


@operator("TopK")
def top_k(on: ModelBuilder, node: OnnxNode, x: OnnxValue, k: OnnxValue | None = None) -> tuple[OnnxValue, ...]:
    """Lower the greatest or smallest elements of an axis, with their indices."""
    axis = axis_of(node.get("axis", -1), x.ndim)
    count = int(on.number(k) if k is not None else node.get("k"))
    shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
    if not math.prod(shape):
        return known(np.zeros(shape, x.dtype)), known(np.zeros(shape, np.int64))
    values, places = first_elements(on.build, on.given(x), axis, count, smallest=not node.get("largest", 1))
    return on.taken(values, x.dtype), on.taken(places, "int64")


@operator("CumSum", "CumProd")
def cumulative(on: ModelBuilder, node: OnnxNode, x: OnnxValue, axis: OnnxValue) -> OnnxValue:
    """Lower cumulative sums or products."""
    along = axis_of(int(on.number(axis)), x.ndim)
    flags = {"exclusive": bool(node.get("exclusive", 0)), "last": bool(node.get("reverse", 0))}
    kind = "sum" if node.operator == "CumSum" else "product"
    return on.taken(cumulative_of(on.build, on.given(x), along, kind, **flags), x.dtype)
