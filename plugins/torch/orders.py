"""The order in which tensors have their elements in memory, such as channels last."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch

Order = tuple[int, ...]  # the axes of a tensor, the slowest in memory first; empty: as they are


def order_of(tensor: torch.Tensor) -> Order:
    """Return the order in which a tensor's elements fill its memory; empty if they lie as they are seen, or apart."""
    return () if tensor.is_contiguous() else order_of_strides(tensor.shape, tensor.stride())


@lru_cache(maxsize=4096)
def order_of_strides(shape: Sequence[int], strides: Sequence[int]) -> Order:
    """Return the order of a tensor's axes by its strides, of which those along a single element have no meaning.

    Examples
    --------
    >>> order_of_strides((8, 3, 224, 224), (150528, 1, 672, 3))
    (0, 2, 3, 1)
    """
    order = sorted(range(len(shape)), key=lambda axis: (shape[axis] != 1, -strides[axis]))
    expected = 1
    for axis in reversed(order):
        if shape[axis] != 1 and strides[axis] != expected:
            return ()
        expected *= shape[axis]
    return () if order == list(range(len(shape))) else tuple(order)


def in_memory(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements of a tensor as a contiguous one: a view of its memory, or a copy where they lie apart."""
    order = order_of(tensor)
    return tensor.permute(order) if order else tensor.contiguous()
