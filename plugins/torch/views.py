"""Views by strides that keep the order of elements, as other shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

aten = torch.ops.aten


def read_as_shapes(module: GraphModule) -> None:
    """Make views of whole tensors in their order shapes: results of regions lie in order, whatever PyTorch's would do.

    A view by strides of all of a contiguous tensor is another shape of it; writing one replaces the tensor.
    """
    for node in module.graph.nodes:
        if node.target is aten.view.default:
            node.target = aten.reshape.default
        elif node.target is aten.as_strided.default and _in_order(node.args[0], *node.args[1:]):
            node.target, node.args = aten.reshape.default, tuple(node.args[:2])
        elif node.target is aten.as_strided_scatter.default and _in_order(node.args[0], *node.args[2:]):
            shape = list(node.args[0].meta["val"].shape)
            if all(isinstance(size, int) for size in shape):
                node.target, node.args = aten.reshape.default, (node.args[1], shape)


def _in_order(x: Any, shape: Sequence[Any], strides: Sequence[Any], offset: Any = None) -> bool:
    """Return whether a view by strides is all of a tensor in the order of its elements."""
    value = x.meta.get("val") if isinstance(x, Node) else None
    if not isinstance(value, torch.Tensor) or offset not in (None, 0):
        return False
    sizes, steps = ([n.meta["val"] if isinstance(n, Node) else n for n in numbers] for numbers in (shape, strides))
    whole = value.numel() == math.prod(sizes) and _contiguous(value.shape, value.stride())
    return bool(whole and _contiguous(sizes, steps))


def _contiguous(shape: Sequence[Any], strides: Sequence[Any]) -> bool:
    """Return whether strides are those of elements in order; the stride of a single element has no meaning."""
    expected = 1
    for size, stride in zip(reversed(shape), reversed(strides)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True
