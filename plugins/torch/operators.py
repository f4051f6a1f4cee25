"""Operators of clgraft in PyTorch: resizing, which PyTorch would take apart, and gradients that read other values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


@torch.library.custom_op("clgraft::max_pool2d_backward", mutates_args=())
def _max_pool_backward(
    dy: torch.Tensor,
    x: torch.Tensor,
    y: torch.Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    pad: Sequence[int],
    dilate: Sequence[int],
    ceil: bool,
) -> torch.Tensor:
    """Compute the gradient of maxima of windows from the maxima instead of their indices."""
    _, indices = torch.ops.aten.max_pool2d_with_indices(x, kernel, stride, pad, dilate, ceil)
    found = torch.ops.aten.max_pool2d_with_indices_backward(dy, x, kernel, stride, pad, dilate, ceil, indices)
    return found.contiguous()


@_max_pool_backward.register_fake
def _(
    dy: torch.Tensor,
    x: torch.Tensor,
    y: torch.Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    pad: Sequence[int],
    dilate: Sequence[int],
    ceil: bool,
) -> torch.Tensor:
    return x.new_empty(x.shape)


max_pool_backward = torch.ops.clgraft.max_pool2d_backward.default


@torch.library.custom_op("clgraft::adaptive_max_pool_backward", mutates_args=())
def _adaptive_max_pool_backward(
    dy: torch.Tensor, x: torch.Tensor, y: torch.Tensor, size: Sequence[int]
) -> torch.Tensor:
    """Compute the gradient of maxima at a given number of places from the maxima instead of their indices."""
    name = f"adaptive_max_pool{len(size)}d"
    _, indices = getattr(torch.ops.aten, name)(x, size)
    return getattr(torch.ops.aten, f"{name}_backward")(dy, x, indices).contiguous()  # type: ignore[no-any-return]


@_adaptive_max_pool_backward.register_fake
def _(dy: torch.Tensor, x: torch.Tensor, y: torch.Tensor, size: Sequence[int]) -> torch.Tensor:
    return x.new_empty(x.shape)


adaptive_max_pool_backward = torch.ops.clgraft.adaptive_max_pool_backward.default


_NAMES = {"nearest": "upsample_nearest", "nearest-exact": "_upsample_nearest_exact"}
_LINEAR = ("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d")


def _resizing(mode: str, ndim: int, align: bool) -> tuple[str, tuple[bool, ...]]:
    """Return the name of PyTorch's operator, and its arguments after the sizes."""
    return (_LINEAR[ndim - 1], (align,)) if mode == "linear" else (f"{_NAMES[mode]}{ndim}d", ())


@torch.library.custom_op("clgraft::resize", mutates_args=())
def _resize(x: torch.Tensor, size: Sequence[int], mode: str, align: bool) -> torch.Tensor:
    """Compute images of another size (see `torch.nn.functional.interpolate`)."""
    name, more = _resizing(mode, x.ndim - 2, align)
    return getattr(torch.ops.aten, name)(x, list(size), *more).contiguous()


@_resize.register_fake
def _(x: torch.Tensor, size: Sequence[int], mode: str, align: bool) -> torch.Tensor:
    return x.new_empty((*x.shape[:2], *size))


@torch.library.custom_op("clgraft::resize_backward", mutates_args=())
def _resize_backward(dy: torch.Tensor, shape: Sequence[int], mode: str, align: bool) -> torch.Tensor:
    """Compute the gradient of images of another size; `shape` is that of the images before."""
    name, more = _resizing(mode, dy.ndim - 2, align)
    backward = getattr(torch.ops.aten, f"{name}_backward")
    return backward(dy.contiguous(), list(dy.shape[2:]), list(shape), *more).contiguous()


@_resize_backward.register_fake
def _(dy: torch.Tensor, shape: Sequence[int], mode: str, align: bool) -> torch.Tensor:
    return dy.new_empty(shape)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    x, _, ctx.mode, ctx.align = inputs
    ctx.shape = x.shape


def _differentiate(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
    return resize_backward(dy, ctx.shape, ctx.mode, ctx.align), None, None, None


_resize.register_autograd(_differentiate, setup_context=_remember)
resize = torch.ops.clgraft.resize.default
resize_backward = torch.ops.clgraft.resize_backward.default
