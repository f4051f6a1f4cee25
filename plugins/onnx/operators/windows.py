"""Convolutions, deconvolutions and pooling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from clgraft.core.nn import convolution as convolutions
from clgraft.core.nn import pooling as nn
from clgraft.core.nn import shapes
from clgraft.core.nn.builder import Tensor
from clgraft.plugins.onnx.lowering import ModelBuilder
from clgraft.plugins.onnx.nodes import OnnxNode, operator
from clgraft.plugins.onnx.values import OnnxValue, carrier_of

MOST_AXES = 3
MOST_TAPS = 128  # elements of a window with holes


def spatial(node: OnnxNode, x: OnnxValue) -> tuple[int, ...]:
    """Return the spatial sizes of (batch, channels, ...)."""
    node.expect(3 <= x.ndim <= 2 + MOST_AXES, f"{x.ndim - 2} spatial axes")
    node.expect(x.is_real, f"type {x.dtype}")
    return x.shape[2:]


def ints(node: OnnxNode, name: str, count: int, default: int) -> tuple[int, ...]:
    """Return an attribute of one number per axis."""
    values = tuple(int(value) for value in node.get(name, [default] * count))
    if len(values) != count:
        raise ValueError(f"{name} {values}, expected {count} numbers")
    return values


def pads(
    node: OnnxNode, size: Sequence[int], reach: Sequence[int], stride: Sequence[int]
) -> tuple[tuple[int, ...], ...]:
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
        return nn.same_pads(size, reach, stride, upper=mode == "SAME_UPPER")
    node.expect(mode in ("NOTSET", ""), f"auto_pad {mode}")
    both = ints(node, "pads", 2 * len(size), 0)
    return both[: len(size)], both[len(size) :]


def padded(
    on: ModelBuilder, x: OnnxValue, before: Sequence[int], behind: Sequence[int], value: float = 0.0
) -> OnnxValue:
    """Return a value with a constant around it; negative padding cuts elements off."""
    if not any((*before, *behind)):
        return x
    return on.taken(shapes.padded(on.build, on.given(x), before, behind, value), x.dtype)


@operator("Conv")
def convolution(on: ModelBuilder, node: OnnxNode, x: OnnxValue, w: OnnxValue, b: OnnxValue | None = None) -> OnnxValue:
    """Lower a convolution."""
    size = spatial(node, x)
    ndim = len(size)
    kernel = w.shape[2:]
    if len(kernel) != ndim or tuple(node.get("kernel_shape", kernel)) != kernel:
        raise ValueError(f"kernel_shape {node.get('kernel_shape')} for weights of shape {w.shape}")
    stride, dilate = ints(node, "strides", ndim, 1), ints(node, "dilations", ndim, 1)
    before, behind = pads(node, size, nn.reaches(kernel, dilate), stride)
    groups = int(node.get("group", 1))
    if w.shape[1] * groups != x.shape[1]:
        raise ValueError(f"weights of shape {w.shape} in {groups} groups for {x.shape[1]} channels")
    given = {"stride": stride, "pad": before, "pad_end": behind, "dilate": dilate, "groups": groups}
    return on.taken(convolutions.convolution(on.build, *_weighted(on, x, w, b), **given), x.dtype)


def _weighted(on: ModelBuilder, x: OnnxValue, w: OnnxValue, b: OnnxValue | None) -> list[Tensor]:
    """Return the image, the weights and the bias, if there is one."""
    return [on.given(value) for value in (x, w, b) if value is not None]


@operator("ConvTranspose")
def deconvolution(
    on: ModelBuilder, node: OnnxNode, x: OnnxValue, w: OnnxValue, b: OnnxValue | None = None
) -> OnnxValue:
    """Lower a deconvolution: without padding, whose share of the result is then cut off, or filled up with the bias."""
    size = spatial(node, x)
    ndim, kernel, groups = len(size), w.shape[2:], int(node.get("group", 1))
    if len(kernel) != ndim or w.shape[0] != x.shape[1]:
        raise ValueError(f"weights of shape {w.shape} for {x.shape}")
    stride, dilate = ints(node, "strides", ndim, 1), ints(node, "dilations", ndim, 1)
    extra = ints(node, "output_padding", ndim, 0)
    given: dict[str, Any] = {"stride": stride, "dilate": dilate, "extra": extra, "groups": groups}
    given.update(_deconvolution_pads(node, size, stride))
    return on.taken(convolutions.deconvolution(on.build, *_weighted(on, x, w, b), **given), x.dtype)


def _deconvolution_pads(node: OnnxNode, size: Sequence[int], stride: Sequence[int]) -> dict[str, Any]:
    """Return the padding of a deconvolution, or the size of the result from which it follows."""
    mode, wanted = node.get("auto_pad", "NOTSET"), node.get("output_shape")
    if wanted is not None:
        return {"size": wanted[-len(size) :], "larger_first": mode != "SAME_UPPER"}
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        return {"size": convolutions.same_size(size, stride), "larger_first": mode != "SAME_UPPER"}
    if mode == "VALID":
        return {}
    both = ints(node, "pads", 2 * len(size), 0)
    return {"pad": both[: len(size)], "pad_end": both[len(size) :]}


@operator("MaxPool", "AveragePool", "LpPool")
def pooling(on: ModelBuilder, node: OnnxNode, x: OnnxValue) -> OnnxValue | tuple[OnnxValue, ...]:
    """Lower pooling over windows."""
    if node.operator == "LpPool" or x.is_real:
        spatial(node, x)
    size = x.shape[2:]
    ndim = len(size)
    kernel = ints(node, "kernel_shape", ndim, 1)
    stride, dilate = ints(node, "strides", ndim, 1), ints(node, "dilations", ndim, 1)
    if min((*kernel, *stride, *dilate)) < 1:
        raise ValueError(f"windows of {kernel}, strides {stride} and dilations {dilate}")
    before, behind = pads(node, size, nn.reaches(kernel, dilate), stride)
    ceil = bool(node.get("ceil_mode", 0))
    name = {"MaxPool": "max", "AveragePool": "average"}.get(node.operator, f"lp{node.get('p', 2)}")
    node.expect(node.operator != "LpPool" or node.get("p", 2) in (1, 2, 3), f"p {node.get('p', 2)}")
    count_padding = node.operator != "AveragePool" or bool(node.get("count_include_pad", 0))
    given = {"stride": stride, "pad": before, "pad_end": behind, "rounding": nn.CEIL_WITHIN if ceil else "floor"}
    if set(dilate) != {1}:
        node.expect(not node.wants(1), "indices of dilated windows")
        node.expect(math.prod(kernel) <= MOST_TAPS, f"dilated windows of {math.prod(kernel)} elements")
    else:
        wide = any(p >= k for p, k in zip(before, kernel)) and name in ("max", "average")
        if wide or any(p < 0 for p in (*before, *behind)):
            raise node.refuse(f"pads {before} and {behind} of windows of {kernel}")
    if not node.wants(1):
        more = {"dilate": dilate, "count_padding": count_padding, "absolute": True}
        return on.taken(nn.pool(on.build, on.given(x), name, kernel, **given, **more), x.dtype)
    by_columns = bool(node.get("storage_order", 0))
    if ceil:
        ends = nn.ends_within(size, kernel, stride, before, behind)
        node.expect(min(ends) >= 0, "indices where windows begin behind the image")
    node.expect(not by_columns or ndim == 2, f"column-major indices of {ndim} axes")
    y, found = nn.pool_with_places(on.build, on.given(x), kernel, **given)
    carrier = carrier_of("int64", on.has_fp64)
    whole = nn.places_in_tensor(on.build, found, size, carrier, columns_first=by_columns)
    return on.taken(y, x.dtype), on.taken(whole, "int64")


@operator("ai.clgraft.AdaptiveMaxPool")
def adaptive_max_pooling(on: ModelBuilder, node: OnnxNode, x: OnnxValue) -> tuple[OnnxValue, ...]:
    """Lower adaptive max pooling, which ONNX lacks: maxima, and their indices in their planes, as in PyTorch."""
    sizes = ints(node, "output_size", len(spatial(node, x)), 1)
    found = nn.adaptive_max_pool(on.build, on.given(x), sizes, indices=node.wants(1))
    return tuple(on.taken(value, dtype) for value, dtype in zip(found, (x.dtype, "int64")))


@operator("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def global_pooling(on: ModelBuilder, node: OnnxNode, x: OnnxValue) -> OnnxValue:
    """Lower pooling over whole images."""
    operator_of = {"GlobalMaxPool": "max", "GlobalAveragePool": "average"}
    y = nn.whole(on.build, on.given(x), operator_of.get(node.operator, "lp"), node.get("p", 2))
    return on.taken(y, x.dtype)
