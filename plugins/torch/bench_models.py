"""The nets that benchmarks and tests take from torchvision, with random weights, and MobileNet."""

from __future__ import annotations

import contextlib
import importlib.util
import warnings
from functools import cache
from typing import Any

import torch
from torch import nn

from clgraft.plugins.plugin import PluginError

# A torchvision that was built for CUDA loads no operators of its own next to a torch for CPUs; its module wants them.
# Next to a torch for CUDA it does, and refuses those that are there.
OPERATORS = (
    *("roi_align", "_roi_align_backward", "ps_roi_align", "_ps_roi_align_backward", "roi_pool", "_roi_pool_backward"),
    *("ps_roi_pool", "_ps_roi_pool_backward", "qroi_align", "qnms", "deform_conv2d", "_deform_conv2d_backward"),
    *("box_iou_rotated", "nms"),
)
SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
# of MobileNet's pairs of convolutions: channels, stride (Howard et al. 2017, table 1)
PAIRS = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1))


@cache
def torchvision() -> Any:
    """Return torchvision, after the operators that its module wants are declared.

    Raises
    ------
    PluginError
        If it is not installed.
    """
    if importlib.util.find_spec("torchvision") is None:
        raise PluginError("[torch] torchvision is needed for its nets, expected it to be installed")
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in OPERATORS if torch.version.cuda is None else ():
        with contextlib.suppress(RuntimeError):  # there already
            library.define(f"{name}{SIGNATURE}")
    torchvision.library = library  # type: ignore[attr-defined]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torchvision as module
    return module


def of_torchvision(name: str, **options: Any) -> Any:
    """Return one of torchvision's nets with random weights."""
    return getattr(torchvision().models, name)(weights=None, **options)


def mobilenet() -> Any:
    """Return a MobileNet (Howard et al. 2017), which torchvision lacks: depthwise and 1x1 convolutions in turn."""
    layers, width = _convolution(3, 32, 3, 2), 32
    for channels, stride in PAIRS:
        layers += [*_convolution(width, width, 3, stride, width), *_convolution(width, channels, 1)]
        width = channels
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 1000))


def _convolution(channels: int, results: int, kernel: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    """Return a convolution with batch norm and a rectifier."""
    layer = nn.Conv2d(channels, results, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [layer, nn.BatchNorm2d(results), nn.ReLU(inplace=True)]
