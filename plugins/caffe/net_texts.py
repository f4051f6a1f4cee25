"""Whole nets as prototxts: a ResNet-18, a ResNet-50 and a MobileNet. Caffe is not needed."""

from __future__ import annotations

from collections.abc import Sequence

CLASSES = 1000


class NetText:
    """A net under construction: each method adds layers on top of a blob and returns the new blob's name."""

    def __init__(self, batch: int, pixels: int, learn: bool, channels: int = 3) -> None:
        self.norm = "" if learn else "batch_norm_param { use_global_stats: true }"
        shape = f"dim: {batch} dim: {channels} dim: {pixels} dim: {pixels}"
        self.parts = [
            f'layer {{ name: "data" type: "Input" top: "data" input_param {{ shape {{ {shape} }} }} }}',
            f'layer {{ name: "label" type: "Input" top: "label" input_param {{ shape {{ dim: {batch} }} }} }}',
        ]
        self.count = 0

    def layer(self, kind: str, bottoms: Sequence[str], parameters: str = "", top: str = "") -> str:
        self.count += 1
        name = f"{kind.lower()}{self.count}"
        blobs = " ".join(f'bottom: "{bottom}"' for bottom in bottoms) + f' top: "{top or name}"'
        self.parts.append(f'layer {{ name: "{name}" type: "{kind}" {blobs} {parameters} }}')
        return top or name

    def conv(self, x: str, outputs: int, kernel: int, stride: int = 1, group: int = 1, relu: bool = True) -> str:
        """Add a Convolution, BatchNorm, Scale and, unless told otherwise, ReLU."""
        sizes = f"kernel_size: {kernel} stride: {stride} pad: {kernel // 2} group: {group}"
        y = self.layer(
            "Convolution",
            [x],
            f"convolution_param {{ num_output: {outputs} {sizes} bias_term: false weight_filler {{ type: 'msra' }} }}",
        )
        self.layer("BatchNorm", [y], self.norm, top=y)
        self.layer("Scale", [y], "scale_param { bias_term: true }", top=y)
        return self.layer("ReLU", [y], top=y) if relu else y

    def pool(self, x: str, parameters: str) -> str:
        return self.layer("Pooling", [x], f"pooling_param {{ {parameters} }}")

    def finish(self, x: str) -> str:
        """Add global pooling, the dense layer and the loss; return the text."""
        x = self.pool(x, "pool: AVE global_pooling: true")
        x = self.layer(
            "InnerProduct", [x], f"inner_product_param {{ num_output: {CLASSES} weight_filler {{ type: 'xavier' }} }}"
        )
        self.layer("SoftmaxWithLoss", [x, "label"], top="loss")
        return "\n".join(self.parts)


def resnet18(batch: int, learn: bool = True, pixels: int = 224) -> str:
    """Return a ResNet-18 (He et al. 2016): two blocks of two 3x3 convolutions at each of four sizes."""
    net = NetText(batch, pixels, learn)
    x = net.pool(net.conv("data", 64, 7, 2), "pool: MAX kernel_size: 3 stride: 2")
    width = 64
    for channels in (64, 128, 256, 512):
        for block in range(2):
            stride = 2 if block == 0 and channels > 64 else 1
            y = net.conv(net.conv(x, channels, 3, stride), channels, 3, relu=False)
            around = x if (stride, width) == (1, channels) else net.conv(x, channels, 1, stride, relu=False)
            y = net.layer("Eltwise", [around, y])
            x, width = net.layer("ReLU", [y], top=y), channels
    return net.finish(x)


def resnet50(batch: int, learn: bool = True, pixels: int = 224) -> str:
    """Return a ResNet-50 (He et al. 2016): stages begin with a 1x1 convolution of stride 2, as in Caffe."""
    net = NetText(batch, pixels, learn)
    x = net.pool(net.conv("data", 64, 7, 2), "pool: MAX kernel_size: 3 stride: 2")
    for stage, count in enumerate((3, 4, 6, 3)):
        channels = 64 * 2**stage
        for block in range(count):
            stride = 2 if block == 0 and stage else 1
            y = net.conv(net.conv(x, channels, 1, stride), channels, 3)
            y = net.conv(y, 4 * channels, 1, relu=False)
            around = x if block else net.conv(x, 4 * channels, 1, stride, relu=False)
            y = net.layer("Eltwise", [around, y])
            x = net.layer("ReLU", [y], top=y)
    return net.finish(x)


def mobilenet(batch: int, learn: bool = True, pixels: int = 224) -> str:
    """Return a MobileNet (Howard et al. 2017): depthwise and 1x1 convolutions in turn."""
    net = NetText(batch, pixels, learn)
    x, width = net.conv("data", 32, 3, 2), 32
    plan = [(64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1)]
    for channels, stride in plan:
        x = net.conv(net.conv(x, width, 3, stride, group=width), channels, 1)
        width = channels
    return net.finish(x)


NETS = {"resnet18": resnet18, "resnet50": resnet50, "mobilenet": mobilenet}
