"""Resize and Upsample."""

from __future__ import annotations

from collections.abc import Sequence

from clgraft.core.nn import resizing as nn
from clgraft.core.operators.resampling import Resampling
from clgraft.plugins.onnx.lowering import ModelBuilder
from clgraft.plugins.onnx.nodes import OnnxNode, operator
from clgraft.plugins.onnx.operators.shapes import axis_of
from clgraft.plugins.onnx.values import OnnxValue

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
    sizes = [nn.scaled(size, factor) for size, factor in zip(x.shape, factors)]
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
            wanted[axis], factors[axis] = nn.scaled(x.shape[axis], factor), factor
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
    value = float(node.get("extrapolation_value", 0.0))
    return on.taken(nn.with_value_outside(on.build, on.given(y), filters, value), x.dtype)


def _sizes(
    on: ModelBuilder, node: OnnxNode, x: OnnxValue, axes: Sequence[int], sizes: Sequence[int]
) -> tuple[list[int], list[float]]:
    """Return the sizes and scales of some axes, with one scale for all where the aspect ratio is kept."""
    own, policy = [x.shape[axis] for axis in axes], node.get("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        return list(sizes), nn.stretched(own, sizes)
    node.expect(policy in ("not_larger", "not_smaller"), f"policy {policy}")
    found, factor = nn.scaled_alike(own, sizes, larger=policy == "not_smaller")
    return found, [factor] * len(axes)


def resampled(on: ModelBuilder, x: OnnxValue, filters: Sequence[Resampling]) -> OnnxValue:
    """Return a value with its axes resampled."""
    for one in filters:
        on.budget.expect("bytes", 32 * nn.most_taps(one) * one.out_extent, "a table of weights")
    given = on.given(x)
    y = nn.resampled(on.build, given, filters)
    return x if y is given else on.taken(y, x.dtype)
