"""Operators of clgraft in PyTorch: gradients that read other values than PyTorch's own do."""

from __future__ import annotations

from collections.abc import Sequence

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
