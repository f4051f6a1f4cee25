"""Resize and Upsample."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from clgraft.core.nn import resizing as nn
from clgraft.core.nn.elementwise import SELECTION
from clgraft.core.operators.resampling import ResampleProblem, Resampling
from clgraft.plugins.onnx.lowering import ModelBuilder
from clgraft.plugins.onnx.nodes import OnnxNode, operator
from clgraft.plugins.onnx.operators.shapes import axis_of
from clgraft.plugins.onnx.values import OnnxValue, known

COORDINATES = {
    "half_pixel": "half_pixel",
    "half_pixel_symmetric": "half_pixel_symmetric",
    "pytorch_half_pixel": "half_pixel_one",
    "align_corners": "align_corners",
    "asymmetric": "asymmetric",
    "tf_crop_and_resize": "crop",
}
ROUNDINGS = {
    "round_prefer_floor": "prefer_floor",
    "round_prefer_ceil": "prefer_ceil",
    "floor": "floor",
    "ceil": "ceil",
}


@operator("Upsample")
def upsample(on: ModelBuilder, node: OnnxNode, x: OnnxValue, scales: OnnxValue | None = None) -> OnnxValue:
    """Lower the resize of opset 9."""
    factors = on.host(scales).tolist() if scales is not None else node.get("scales")
    sizes = [math.floor(size * factor) for size, factor in zip(x.shape, factors)]
    axes = [
        Resampling(node.get("mode", "nearest"), i, o, factor, "asymmetric", "floor")
        for i, o, factor in zip(x.shape, sizes, factors)
    ]
    return resampled(on, x, axes)


@operator("Resize")
def resize(
    on: ModelBuilder,
    node: OnnxNode,
    x: OnnxValue,
    roi: OnnxValue | None = None,
    scales: OnnxValue | None = None,
    sizes: OnnxValue | None = None,
) -> OnnxValue:
    """Lower a resize of any axes; up to opset 10 by scales alone."""
    old = node.opset < 11
    if old:
        roi, scales = None, roi
    axes = [axis_of(axis, x.ndim) for axis in node.get("axes", range(x.ndim))]
    factors, wanted = [1.0] * x.ndim, list(x.shape)
    if sizes is not None and sizes.size:
        for axis, size, factor in zip(axes, *_sizes(on, node, x, axes, on.numbers(sizes))):
            wanted[axis], factors[axis] = size, factor
    elif scales is None:
        raise ValueError("no sizes and no scales")
    else:
        for axis, factor in zip(axes, on.host(scales).reshape(-1).tolist()):
            wanted[axis], factors[axis] = math.floor(x.shape[axis] * factor), factor
    if min(wanted) < 1 or not all(factor > 0 for factor in factors):
        raise ValueError(f"sizes {wanted} and scales {factors}")
    mode = "asymmetric" if old else node.get("coordinate_transformation_mode", "half_pixel")
    ends = [(0.0, 1.0)] * x.ndim
    if mode == "tf_crop_and_resize" and roi is not None:
        corners = on.host(roi).reshape(-1).tolist()
        for i, axis in enumerate(axes):
            ends[axis] = (corners[i], corners[len(axes) + i])
    filters = [
        Resampling(
            method=node.get("mode", "nearest"),
            in_extent=x.shape[axis],
            out_extent=wanted[axis],
            scale=factors[axis],
            coordinates=COORDINATES[mode],
            rounding="floor" if old else ROUNDINGS[node.get("nearest_mode", "round_prefer_floor")],
            cubic=node.get("cubic_coeff_a", -0.75),
            antialias=bool(node.get("antialias", 0)),
            exclude_outside=bool(node.get("exclude_outside", 0)),
            start=ends[axis][0],
            stop=ends[axis][1],
        )
        for axis in range(x.ndim)
    ]
    y = resampled(on, x, filters)
    if mode != "tf_crop_and_resize":
        return y
    return _extrapolated(on, y, filters, float(node.get("extrapolation_value", 0.0)))


def _sizes(
    on: ModelBuilder, node: OnnxNode, x: OnnxValue, axes: Sequence[int], sizes: Sequence[int]
) -> tuple[list[int], list[float]]:
    """Return the sizes and scales of some axes, with one scale for all where the aspect ratio is kept."""
    factors = [size / x.shape[axis] for size, axis in zip(sizes, axes)]
    policy = node.get("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        return list(sizes), factors
    node.expect(policy in ("not_larger", "not_smaller"), f"policy {policy}")
    factor = min(factors) if policy == "not_larger" else max(factors)
    return [math.floor(factor * x.shape[axis] + 0.5) for axis in axes], [factor] * len(axes)


def resampled(on: ModelBuilder, x: OnnxValue, filters: Sequence[Resampling]) -> OnnxValue:
    """Return a value with its axes resampled: by one problem for images, or axis by axis."""
    for one in filters:
        taps = 4 / min(one.scale, 1.0) + 4 if one.antialias else 4
        on.budget.expect("bytes", 32 * taps * one.out_extent, "a table of weights")
    moved = [axis for axis, one in enumerate(filters) if _changes(one)]
    if not moved:
        return x
    if 3 <= x.ndim <= 5 and min(moved) >= 2 and len({_way(filters[axis]) for axis in moved}) == 1:
        way = _way(filters[moved[0]])
        if way is not None:
            method, coordinates, rounding = way
            size = tuple(one.out_extent for one in filters[2:])
            return on.taken(nn.resized(on.build, on.given(x), size, method, coordinates, rounding), x.dtype)
    carrier = on.carrier(x)
    weights = "float64" if carrier == "float64" else "float32"
    for axis in moved:
        index, weight = filters[axis].table()
        shape = (*x.shape[:axis], len(index), *x.shape[axis + 1 :])
        outer, inner = math.prod(x.shape[:axis]), math.prod(x.shape[axis + 1 :])
        problem = ResampleProblem(outer, x.shape[axis], len(index), inner, index.shape[1], carrier)
        (name,) = on.add(problem, on.tensor(x), on.table(index), on.table(weight.astype(weights)))
        x = on.made(name, shape, x.dtype, carrier)
    return x


def _changes(one: Resampling) -> bool:
    if one.in_extent != one.out_extent:
        return True
    index, weight = one.table()
    own = index == np.arange(len(index))[:, None]
    return bool(np.where(own, 0, weight).any() or (np.where(own, weight, 0).sum(1) != 1).any())


def _way(one: Resampling) -> tuple[str, str, str] | None:
    """Return the words of the interpolation problem that is the same; None if there is none."""
    whole = one.scale * one.in_extent == one.out_extent or one.scale == one.out_extent / one.in_extent
    plain = one.method in ("nearest", "linear") and not (one.antialias and one.scale < 1) and not one.exclude_outside
    known_places = one.coordinates in ("half_pixel", "half_pixel_one", "align_corners", "asymmetric")
    return (one.method, one.coordinates, one.rounding) if whole and plain and known_places else None


def _extrapolated(on: ModelBuilder, y: OnnxValue, filters: Sequence[Resampling], value: float) -> OnnxValue:
    """Return a value with another one where it lies beyond the ends."""
    inside = np.ones((1,) * y.ndim, np.float32)
    for axis, one in enumerate(filters):
        if one.out_extent == y.shape[axis]:
            good = ~one.outside()
            inside = inside * good.reshape([-1 if i == axis else 1 for i in range(y.ndim)])
    if inside.all():
        return y
    mask = known(inside.astype(np.float32))
    return on.pointwise(SELECTION, [mask, y, known(np.array(value))], y.dtype, on.carrier(y))
