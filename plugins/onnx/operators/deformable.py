"""Deformable convolution: every tap reads the image at a place of its own."""

from __future__ import annotations

import numpy as np

from clgraft.core.nn.resizing import PLACES
from clgraft.core.operators.conv import ConvProblem
from clgraft.core.operators.sampling import GridSampleProblem
from clgraft.plugins.onnx.lowering import ModelBuilder
from clgraft.plugins.onnx.nodes import OnnxNode, operator
from clgraft.plugins.onnx.operators.elementwise import of_two
from clgraft.plugins.onnx.operators.indices import gathered
from clgraft.plugins.onnx.operators.windows import ints, pads, spatial
from clgraft.plugins.onnx.values import OnnxValue, known


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
    """Lower a deformable convolution (Dai et al. 2017; with a mask Zhu et al. 2019).

    The images that the taps see are sampled, and become the channels of a convolution of one tap.
    """
    size, kernel = spatial(node, x), w.shape[2:]
    node.expect(len(size) == 2, f"{len(size)} spatial axes")
    if len(kernel) != 2 or tuple(node.get("kernel_shape", kernel)) != kernel:
        raise ValueError(f"kernel_shape {node.get('kernel_shape')} for weights of shape {w.shape}")
    stride, dilate = ints(node, "strides", 2, 1), ints(node, "dilations", 2, 1)
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilate)]
    before, behind = pads(node, size, reach, stride)
    out = tuple((i + p + q - r) // s + 1 for i, p, q, r, s in zip(size, before, behind, reach, stride))
    batch, channels = x.shape[:2]
    parts, groups, taps = int(node.get("offset_group", 1)), int(node.get("group", 1)), kernel[0] * kernel[1]
    if w.shape[1] * groups != channels or channels % parts:
        raise ValueError(f"weights of shape {w.shape}, {groups} groups and {parts} of offsets for {channels} channels")
    images, carrier = batch * parts, on.carrier(x)
    if min(out) < 1:
        raise ValueError(f"images of {size} for windows of {reach}")
    on.make_room(32 * taps * out[0] * out[1])
    # places of the taps without offsets, along the width and the height
    axes = [
        np.arange(o)[:, None] * s - p + np.arange(k) * d for o, s, p, k, d in zip(out, stride, before, kernel, dilate)
    ]
    places = np.empty((1, *kernel, 2, *out))
    places[0, :, :, 0] = axes[1].T[None, :, None, :]
    places[0, :, :, 1] = axes[0].T[:, None, :, None]
    # the sampling problem counts from -1 to 1: from the middle of the first pixel to that of the last one, or between
    # their outer edges where there is only one
    corners = min(size) > 1
    shift, lengths = (0.0, [i - 1 for i in size]) if corners else (0.5, list(size))
    shape = (images, taps, 2, *out)
    turned = gathered(on, on.reshaped(offset, shape), known(np.array([1, 0])), 2, shape, 2)
    start = known((places.reshape(1, taps, 2, *out) + shift).astype(x.dtype))
    unit = known(np.array([2 / lengths[1], 2 / lengths[0]]).reshape(1, 1, 2, 1, 1).astype(x.dtype))
    grid = on.pointwise(PLACES, [turned, start, unit])
    grid = on.transposed(grid, (0, 1, 3, 4, 2))
    sample = GridSampleProblem(
        method="linear",
        batch=images,
        channels=channels // parts,
        in_size=size,
        out_size=(taps * out[0], out[1]),
        align_corners=corners,
        dtype=carrier,
    )
    (name,) = on.add(sample, on.tensor(on.reshaped(x, (images, channels // parts, *size))), on.tensor(grid, carrier))
    seen = on.made(name, (images, channels // parts, taps, *out), x.dtype, carrier)
    if mask is not None:
        seen = on.pointwise(of_two("multiply"), [seen, on.reshaped(mask, (images, 1, taps, *out))])
    problem = ConvProblem(
        direction="forward",
        batch=batch,
        in_channels=channels * taps,
        out_channels=w.shape[0],
        in_size=out,
        kernel=(1, 1),
        groups=groups,
        bias=b is not None,
        dtype=x.dtype,
    )
    filters = on.reshaped(w, (w.shape[0], w.shape[1] * taps, 1, 1))
    reads = [on.tensor(seen), on.tensor(filters), *([on.tensor(b)] if b is not None else [])]
    (name,) = on.add(problem, *reads)
    return on.made(name, (batch, w.shape[0], *out), x.dtype)
