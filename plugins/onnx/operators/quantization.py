"""Quantized tensors as arithmetic on whole numbers that float32 holds exactly."""

from __future__ import annotations

from collections.abc import Sequence

from onnx import helper

from clgraft.core.nn import quantization as nn
from clgraft.plugins.onnx.lowering import ModelBuilder
from clgraft.plugins.onnx.nodes import OnnxNode, operator
from clgraft.plugins.onnx.operators.linear import product
from clgraft.plugins.onnx.operators.shapes import axis_of, repeated, sliced
from clgraft.plugins.onnx.operators.windows import convolution
from clgraft.plugins.onnx.values import OnnxValue

BYTES = ("int8", "uint8", "int16", "uint16")


def along(on: ModelBuilder, node: OnnxNode, x: OnnxValue, value: OnnxValue) -> OnnxValue:
    """Return a scale or a zero point in a shape that broadcasts to x: one, one per channel, or one per block."""
    if value.size == 1:
        return on.reshaped(value, (1,) * x.ndim)
    axis = axis_of(node.get("axis", 1), x.ndim)
    if value.ndim == 1:
        return on.reshaped(value, [x.shape[axis] if i == axis else 1 for i in range(x.ndim)])
    block = int(node.get("block_size", 0)) or nn.block_size(x.shape[axis], value.shape[axis])
    wide = repeated(on, value, [block if i == axis else 1 for i in range(x.ndim)], whole=False)
    return sliced(on, wide, [0] * x.ndim, x.shape)


def quantized(on: ModelBuilder, x: OnnxValue, scale: OnnxValue, zero: OnnxValue | None, dtype: str) -> OnnxValue:
    """Return the nearest whole numbers of x / scale + zero, halves to the even one, within a type's range."""
    values = [x, scale, *([zero] if zero is not None else [])]
    return on.pointwise(nn.quantized(dtype, zero=zero is not None), values, dtype, "float32")


@operator("QuantizeLinear")
def quantize(
    on: ModelBuilder, node: OnnxNode, x: OnnxValue, scale: OnnxValue, zero: OnnxValue | None = None
) -> OnnxValue:
    """Lower quantization."""
    code = node.get("output_dtype", 0)
    dtype = zero.dtype if zero is not None else helper.tensor_dtype_to_np_dtype(code).name if code else "uint8"
    node.expect(dtype in BYTES, f"type {dtype}")
    wide = [along(on, node, x, value) for value in (scale, zero) if value is not None]
    return quantized(on, x, wide[0], wide[1] if zero is not None else None, dtype)


@operator("DequantizeLinear")
def dequantize(
    on: ModelBuilder, node: OnnxNode, x: OnnxValue, scale: OnnxValue, zero: OnnxValue | None = None
) -> OnnxValue:
    """Lower (x - zero) scale."""
    code = node.get("output_dtype", 0)
    dtype = helper.tensor_dtype_to_np_dtype(code).name if code else scale.dtype
    wide = along(on, node, x, scale)
    if zero is None:
        return on.pointwise(nn.DEQUANTIZED_WITHOUT_ZERO, [x, wide], dtype, dtype)
    return on.pointwise(nn.DEQUANTIZED, [x, along(on, node, x, zero), wide], dtype, on.widest([x, wide]))


def centred(on: ModelBuilder, x: OnnxValue, zero: OnnxValue | None, shape: Sequence[int] = ()) -> OnnxValue:
    """Return x - zero as float32; `shape` is the zero point's, where it is no single number."""
    if zero is None:
        return on.made(on.tensor(x, "float32"), x.shape, "float32")
    wide = on.reshaped(zero, (1,) * x.ndim if zero.size == 1 else shape)
    return on.pointwise(nn.CENTRED, [x, wide], "float32", "float32")


@operator("MatMulInteger")
def matmul_integer(
    on: ModelBuilder,
    node: OnnxNode,
    a: OnnxValue,
    b: OnnxValue,
    a_zero: OnnxValue | None = None,
    b_zero: OnnxValue | None = None,
) -> OnnxValue:
    """Lower a product of bytes: sums below 2^24 are exact."""
    y = product(on, *_operands(on, a, a_zero, b, b_zero))
    return on.made(on.tensor(y), y.shape, "int32", "float32")


def _operands(
    on: ModelBuilder, a: OnnxValue, a_zero: OnnxValue | None, b: OnnxValue, b_zero: OnnxValue | None
) -> tuple[OnnxValue, OnnxValue]:
    rows = (*a.shape[:-2], a.shape[-2], 1) if a_zero is not None and a_zero.ndim > 1 else (a.shape[-2], 1)
    columns = (*b.shape[:-2], 1, b.shape[-1]) if b_zero is not None and b_zero.ndim > 1 else (1, b.shape[-1])
    return centred(on, a, a_zero, rows), centred(on, b, b_zero, columns)


@operator("QLinearMatMul")
def quantized_product(
    on: ModelBuilder,
    node: OnnxNode,
    a: OnnxValue,
    a_scale: OnnxValue,
    a_zero: OnnxValue,
    b: OnnxValue,
    b_scale: OnnxValue,
    b_zero: OnnxValue,
    y_scale: OnnxValue,
    y_zero: OnnxValue,
) -> OnnxValue:
    """Lower a product of quantized matrices."""
    node.expect(y_zero.dtype in BYTES, f"type {y_zero.dtype}")
    y = product(on, *_operands(on, a, a_zero, b, b_zero))
    rows = on.reshaped(a_scale, (*a_scale.shape, 1)) if a_scale.size > 1 and a_scale.ndim == 1 else a_scale
    scale = on.pointwise(nn.PRODUCT_SCALE, [rows, b_scale, y_scale], "float32", "float32")
    return on.pointwise(nn.requantized(y_zero.dtype), [y, scale, y_zero], y_zero.dtype, "float32")


@operator("ConvInteger")
def convolution_integer(
    on: ModelBuilder,
    node: OnnxNode,
    x: OnnxValue,
    w: OnnxValue,
    x_zero: OnnxValue | None = None,
    w_zero: OnnxValue | None = None,
) -> OnnxValue:
    """Lower a convolution of bytes: sums below 2^24 are exact."""
    wide = (w.shape[0], *(1,) * (w.ndim - 1))
    y = convolution(on, node, centred(on, x, x_zero), centred(on, w, w_zero, wide))
    return on.made(on.tensor(y), y.shape, "int32", "float32")


@operator("QLinearConv")
def quantized_convolution(
    on: ModelBuilder,
    node: OnnxNode,
    x: OnnxValue,
    x_scale: OnnxValue,
    x_zero: OnnxValue,
    w: OnnxValue,
    w_scale: OnnxValue,
    w_zero: OnnxValue,
    y_scale: OnnxValue,
    y_zero: OnnxValue,
    b: OnnxValue | None = None,
) -> OnnxValue:
    """Lower a convolution of quantized tensors."""
    node.expect(y_zero.dtype in BYTES, f"type {y_zero.dtype}")
    bias = None if b is None else on.made(on.tensor(b, "float32"), b.shape, "float32")
    wide = (w.shape[0], *(1,) * (w.ndim - 1))
    y = convolution(on, node, centred(on, x, x_zero), centred(on, w, w_zero, wide), bias)
    channels = w_scale if w_scale.size == 1 else on.reshaped(w_scale, (w.shape[0], *(1,) * (x.ndim - 2)))
    scale = on.pointwise(nn.PRODUCT_SCALE, [channels, x_scale, y_scale], "float32", "float32")
    return on.pointwise(nn.requantized(y_zero.dtype), [y, scale, y_zero], y_zero.dtype, "float32")


@operator("DynamicQuantizeLinear")
def quantize_dynamically(on: ModelBuilder, node: OnnxNode, x: OnnxValue) -> tuple[OnnxValue, OnnxValue, OnnxValue]:
    """Lower quantization to bytes whose scale follows from the extrema."""
    found = nn.bytes_scale_and_zero(on.build, on.given(x))
    scale, zero = (on.taken(one, dtype) for one, dtype in zip(found, (x.dtype, "uint8")))
    return quantized(on, x, scale, zero, "uint8"), scale, zero
