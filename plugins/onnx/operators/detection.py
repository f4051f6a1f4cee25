"""Parts of detection heads, and images sampled at places."""

from __future__ import annotations

import numpy as np

from clgraft.core.nn import detection as nn
from clgraft.core.nn.builder import Tensor
from clgraft.core.nn.resizing import sampled
from clgraft.plugins.onnx.lowering import ModelBuilder
from clgraft.plugins.onnx.nodes import OnnxNode, operator
from clgraft.plugins.onnx.operators.indices import expect_inside
from clgraft.plugins.onnx.operators.shapes import sliced
from clgraft.plugins.onnx.values import OnnxValue, known

METHODS = {"nearest": "nearest", "linear": "linear", "bilinear": "linear", "cubic": "cubic", "bicubic": "cubic"}


@operator("NonMaxSuppression")
def suppression(
    on: ModelBuilder,
    node: OnnxNode,
    boxes: OnnxValue,
    scores: OnnxValue,
    most: OnnxValue | None = None,
    overlap: OnnxValue | None = None,
    score: OnnxValue | None = None,
) -> OnnxValue:
    """Lower the choice of boxes; how many there are has to be found out."""
    given = on.given(scores)
    limit = nn.most_chosen(int(on.number(most)) if most is not None else 0, given)
    if not limit:
        return known(np.zeros((0, 3), np.int64))
    index, count = nn.chosen(
        on.build,
        on.given(boxes),
        given,
        most=limit,
        overlap=float(on.number(overlap)) if overlap is not None else 0.0,
        least=float(on.number(score)) if score is not None else float("-inf"),
        centers=bool(node.get("center_point_box", 0)),
    )
    number, rows = on.number(on.taken(count, "int64")), on.taken(index, "int64")
    # the copying problems move real numbers
    wide = on.made(on.tensor(rows, "float64" if on.has_fp64 else "float32"), rows.shape, "int64")
    return sliced(on, wide, [0, 0], [number, 3])


@operator("RoiAlign")
def roi_align(on: ModelBuilder, node: OnnxNode, x: OnnxValue, rois: OnnxValue, images: OnnxValue) -> OnnxValue:
    """Lower regions of interest as images of one size."""
    default = "half_pixel" if node.opset >= 16 else "output_half_pixel"
    expect_inside(on, node, images, (x.shape[0],), low=False)
    size = node.get("output_height", 1), node.get("output_width", 1)
    if not rois.size:
        return known(np.zeros((0, x.shape[1], *size), x.dtype))
    y = nn.regions_at(
        on.build,
        on.given(x),
        on.given(rois, on.carrier(x)),
        Tensor(on.index(images), images.shape, "int32"),
        {"avg": "average", "max": "max"}[node.get("mode", "avg")],
        size,
        scale=float(node.get("spatial_scale", 1.0)),
        samples=node.get("sampling_ratio", 0),
        half_pixel=node.get("coordinate_transformation_mode", default) == "half_pixel",
    )
    return on.taken(y, x.dtype)


@operator("GridSample")
def grid_sample(on: ModelBuilder, node: OnnxNode, x: OnnxValue, grid: OnnxValue) -> OnnxValue:
    """Lower images at given places."""
    y = sampled(
        on.build,
        on.given(x),
        on.given(grid, on.carrier(x)),
        METHODS[node.get("mode", "linear")],
        padding=node.get("padding_mode", "zeros"),
        align_corners=bool(node.get("align_corners", 0)),
    )
    return on.taken(y, x.dtype)
