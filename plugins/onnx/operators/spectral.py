"""Fourier transforms, and the windows of their frames."""

from __future__ import annotations

from clgraft.core.nn import fourier as nn
from clgraft.plugins.onnx.lowering import ModelBuilder
from clgraft.plugins.onnx.nodes import OnnxNode, operator
from clgraft.plugins.onnx.operators.shapes import axis_of
from clgraft.plugins.onnx.operators.windows import padded
from clgraft.plugins.onnx.values import OnnxValue, known


@operator("DFT")
def transform(
    on: ModelBuilder, node: OnnxNode, x: OnnxValue, length: OnnxValue | None = None, axis: OnnxValue | None = None
) -> OnnxValue:
    """Lower a discrete Fourier transform along an axis."""
    inverse, onesided = bool(node.get("inverse", 0)), bool(node.get("onesided", 0))
    node.expect(not inverse, "inverse")
    given = int(on.number(axis)) if axis is not None else node.get("axis", 1 if node.opset < 20 else -2)
    along = axis_of(given, x.ndim)
    size, parts = int(on.number(length)) if length is not None else x.shape[along], x.shape[-1]
    if size != x.shape[along]:
        x = padded(on, x, [0] * x.ndim, [size - old if i == along else 0 for i, old in enumerate(x.shape)])
    outputs = nn.output_count(size, onesided=onesided)
    on.make_room(64 * size * outputs * parts)
    return on.taken(nn.transformed(on.build, on.given(x), along, outputs), x.dtype)


@operator("STFT")
def short_transform(
    on: ModelBuilder,
    node: OnnxNode,
    x: OnnxValue,
    step: OnnxValue,
    window: OnnxValue | None = None,
    length: OnnxValue | None = None,
) -> OnnxValue:
    """Lower transforms of frames that overlap."""
    stride, parts = int(on.number(step)), x.shape[2] if x.ndim == 3 else 1
    size = int(on.number(length)) if length is not None else (window.size if window is not None else 0)
    node.expect(size > 0, "no frame_length and no window")
    if stride < 1 or x.shape[1] < size:
        raise ValueError(f"frames of {size} every {stride} for a signal of {x.shape[1]}")
    wide = on.reshaped(x, (x.shape[0], x.shape[1], parts))
    outputs = nn.output_count(size, onesided=bool(node.get("onesided", 1)))
    on.make_room(64 * size * outputs * parts + 8 * size * x.shape[1] / stride)
    factors = None if window is None else on.given(window, on.carrier(x))
    return on.taken(nn.transformed_frames(on.build, on.given(wide), size, stride, outputs, factors), x.dtype)


@operator("HannWindow", "HammingWindow", "BlackmanWindow", "MelWeightMatrix")
def folded(on: ModelBuilder, node: OnnxNode, *values: OnnxValue) -> list[OnnxValue]:
    """Fold a table that follows from numbers."""
    return on.folded(node, [known(on.host(value)) for value in values])
