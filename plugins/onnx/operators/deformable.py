"""Deformable convolution: every tap reads the image at a place of its own."""

from __future__ import annotations

from clgraft.core.nn import deformable as nn
from clgraft.core.nn.pooling import reaches
from clgraft.plugins.onnx.lowering import ModelBuilder
from clgraft.plugins.onnx.nodes import OnnxNode, operator
from clgraft.plugins.onnx.operators.windows import ints, pads, spatial
from clgraft.plugins.onnx.values import OnnxValue


@operator("DeformConv")
def deformable_convolution(
    on: ModelBuilder,
    node: OnnxNode,
    x: OnnxValue,
    w: OnnxValue,
    offset: OnnxValue,
    b: OnnxValue | None = None,
    mask: OnnxValue | None = None,
) -> OnnxValue:
    """Lower a deformable convolution."""
    size, kernel = spatial(node, x), w.shape[2:]
    node.expect(len(size) == 2, f"{len(size)} spatial axes")
    if len(kernel) != 2 or tuple(node.get("kernel_shape", kernel)) != kernel:
        raise ValueError(f"kernel_shape {node.get('kernel_shape')} for weights of shape {w.shape}")
    stride, dilate = ints(node, "strides", 2, 1), ints(node, "dilations", 2, 1)
    reach = reaches(kernel, dilate)
    window = nn.Window(kernel, stride, dilate, *pads(node, size, reach, stride))
    out = window.out_size(size)
    if min(out) < 1:
        raise ValueError(f"images of {size} for windows of {reach}")
    on.make_room(16 * kernel[0] * kernel[1] * out[0] * out[1])
    carrier = on.carrier(x)
    weights, moved, bias, factors = (None if one is None else on.given(one, carrier) for one in (w, offset, b, mask))
    parts = {"groups": int(node.get("group", 1)), "parts": int(node.get("offset_group", 1))}
    y = nn.convolution(on.build, on.given(x, carrier), weights, moved, factors, bias, window, **parts)
    return on.taken(y, x.dtype)
