"""Nets of torchvision with random weights, exported to ONNX."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

from clgraft.plugins.torch.bench_models import of_torchvision

SIZES = {"inception_v3": 128, "alexnet": 224, "vgg16": 224}  # pixels; others have 64
NETS = (
    *("alexnet", "vgg16", "resnet18", "resnext50_32x4d", "wide_resnet50_2", "efficientnet_b0", "efficientnet_b4"),
    *("regnet_y_400mf", "squeezenet1_0", "mobilenet_v2", "densenet121", "convnext_tiny", "shufflenet_v2_x1_0"),
    *("mnasnet1_0", "googlenet", "inception_v3", "vit_b_16", "mobilenet_v3_small", "unet"),
)


class Twice(nn.Sequential):
    """Two convolutions with batch norms."""

    def __init__(self, channels: int, results: int) -> None:
        parts: list[nn.Module] = []
        for first in (channels, results):
            parts += [nn.Conv2d(first, results, 3, padding=1, bias=False), nn.BatchNorm2d(results), nn.ReLU()]
        super().__init__(*parts)


class UNet(nn.Module):
    """A small U-Net (Ronneberger et al. 2015) with transposed convolutions and bilinear upsampling."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([Twice(3, 8), Twice(8, 16), Twice(16, 32)])
        self.learned = nn.ConvTranspose2d(32, 16, 2, stride=2)
        self.smooth = nn.Upsample(scale_factor=2, mode="bilinear")
        self.up = nn.ModuleList([Twice(32, 16), Twice(24, 8)])
        self.last = nn.Conv2d(8, 4, 1)

    def forward(self, x: Any) -> Any:
        a = self.down[0](x)
        b = self.down[1](nn.functional.max_pool2d(a, 2))
        c = self.down[2](nn.functional.max_pool2d(b, 2))
        d = self.up[0](torch.cat([b, self.learned(c)], 1))
        return self.last(self.up[1](torch.cat([a, self.smooth(d)], 1)))


def build(name: str) -> nn.Module:
    """Return a net for inference, with random weights and statistics that are not trivial."""
    torch.manual_seed(1)
    if name == "unet":
        net: nn.Module = UNet()
    else:
        more = {"aux_logits": False, "init_weights": True} if name in ("googlenet", "inception_v3") else {}
        if name == "vit_b_16":
            more = {"image_size": 64}
        net = of_torchvision(name, **more)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, 0, 0.1)
            nn.init.normal_(module.running_mean, 0, 0.1)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
        if isinstance(module, nn.Linear) and not module.weight.any():  # of a vision transformer's head
            nn.init.normal_(module.weight, 0, 0.05)
    return net.eval()


def export(name: str, path: Path, opset: int = 18, size: int = 0, net: nn.Module | None = None) -> torch.Tensor:
    """Export a net, or `net` if it is built, with a dynamic batch, for images of so many pixels (0: a size for tests).

    Return an input.
    """
    net, size = net or build(name), size or SIZES.get(name, 64)
    x = torch.randn(1 if size > 200 else 2, 3, size, size, generator=torch.Generator().manual_seed(2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            net,
            (x,),
            str(path),
            dynamo=False,
            opset_version=opset,
            input_names=["x"],
            output_names=["y"],
            dynamic_axes={"x": {0: "n"}, "y": {0: "n"}},
        )
    return x
