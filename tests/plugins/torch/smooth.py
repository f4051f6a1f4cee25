"""Nets without kinks, so that gradients can be compared: rounding alone moves a value from one side to the other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch.nn import functional


def smooth(net: Any) -> Any:
    """Take the kinks out of a net, in place, and what draws random numbers: two runs would have nothing in common."""
    for module in list(net.modules()):
        for name, child in module.named_children():
            if isinstance(child, torch.nn.ReLU):
                setattr(module, name, torch.nn.SiLU())
            elif isinstance(child, torch.nn.MaxPool2d):
                average = torch.nn.AvgPool2d(child.kernel_size, child.stride, child.padding, child.ceil_mode)
                setattr(module, name, average)
            elif isinstance(child, torch.nn.Dropout) or type(child).__name__ == "StochasticDepth":
                child.p = 0.0
            elif isinstance(child, torch.nn.MultiheadAttention):
                child.dropout = 0.0
    return net


@contextmanager
def smooth_functions() -> Iterator[None]:
    """Take the kinks out of nets that call rectifiers and maxima instead of having them as modules, in a block."""
    replaced = {"relu": functional.silu, "max_pool2d": functional.avg_pool2d}
    with mock.patch.multiple(functional, **replaced):
        yield
