"""Builds nets in the styles of the field as prototxt text, at any width and any number of pixels.

Each style is a function of `width` (the factor on every number of channels) and `pixels` (the side of the image);
`STYLES` names them with a small size that runs in a test. A style ends in a loss, and no layer of it is a fork's.
"""

from __future__ import annotations

from collections.abc import Callable


class Builder:
    """Text of a net, layer by layer; every method returns the name of its top."""

    def __init__(self, width: float, pixels: int, batch: int = 2, labels: str = "dim: {batch}") -> None:
        self.width, self.count, self.text = width, 0, ""
        self.add("Input", "data", (), f"input_param {{ shape {{ dim: {batch} dim: 3 dim: {pixels} dim: {pixels} }} }}")
        shape = labels.format(batch=batch, pixels=pixels)
        self.add("Input", "label", (), f"input_param {{ shape {{ {shape} }} }}")

    def add(self, kind: str, name: str, bottoms: tuple[str, ...], parameters: str = "", top: str = "") -> str:
        """Add one layer; its top has its name unless `top` says otherwise."""
        links = " ".join([*(f'bottom: "{bottom}"' for bottom in bottoms), f'top: "{top or name}"'])
        self.text += f'layer {{ name: "{name}" type: "{kind}" {links}\n  {parameters} }}\n'
        return top or name

    def fresh(self, kind: str) -> str:
        """Return a name that no layer has."""
        self.count += 1
        return f"{kind.lower()}{self.count}"

    def channels(self, number: float, multiple: int = 1) -> int:
        """Scale a number of channels, to a multiple."""
        return max(multiple, round(number * self.width / multiple) * multiple)

    def conv(self, x: str, out: int, kernel: int, stride: int = 1, pad: int = -1, extra: str = "") -> str:
        """Convolution that pads half its kernel unless told."""
        pad = kernel // 2 if pad < 0 else pad
        sizes = f"num_output: {out} kernel_size: {kernel} stride: {stride} pad: {pad}"
        filler = 'weight_filler { type: "msra" }'
        return self.add("Convolution", self.fresh("conv"), (x,), f"convolution_param {{ {sizes} {filler} {extra} }}")

    def relu(self, x: str) -> str:
        """In-place ReLU."""
        return self.add("ReLU", self.fresh("relu"), (x,), top=x)

    def norm(self, x: str) -> str:
        """Batch norm and its scale and shift, both in place."""
        self.add("BatchNorm", self.fresh("bn"), (x,), top=x)
        return self.add("Scale", self.fresh("scale"), (x,), "scale_param { bias_term: true }", top=x)

    def conv_relu(self, x: str, out: int, kernel: int, stride: int = 1, pad: int = -1, extra: str = "") -> str:
        """Convolution and ReLU."""
        return self.relu(self.conv(x, out, kernel, stride, pad, extra))

    def conv_norm(self, x: str, out: int, kernel: int, stride: int = 1, extra: str = "", active: bool = True) -> str:
        """Convolution without bias, batch norm and perhaps ReLU."""
        y = self.norm(self.conv(x, out, kernel, stride, extra="bias_term: false " + extra))
        return self.relu(y) if active else y

    def pool(self, x: str, kernel: int, stride: int, how: str = "MAX", pad: int = 0) -> str:
        """Pooling; kernel 0 is the whole image."""
        window = f"kernel_size: {kernel} stride: {stride} pad: {pad}" if kernel else "global_pooling: true"
        return self.add("Pooling", self.fresh("pool"), (x,), f"pooling_param {{ pool: {how} {window} }}")

    def lrn(self, x: str) -> str:
        """Normalisation across five channels; with the usual alpha of 1e-4 it would change next to nothing."""
        return self.add("LRN", self.fresh("norm"), (x,), "lrn_param { local_size: 5 alpha: 0.5 beta: 0.75 }")

    def concat(self, *bottoms: str) -> str:
        """Concatenation of channels."""
        return self.add("Concat", self.fresh("concat"), bottoms)

    def plus(self, *bottoms: str) -> str:
        """Sum."""
        return self.add("Eltwise", self.fresh("sum"), bottoms, "eltwise_param { operation: SUM }")

    def dense(self, x: str, out: int) -> str:
        """Fully connected layer."""
        filler = 'weight_filler { type: "xavier" }'
        return self.add("InnerProduct", self.fresh("fc"), (x,), f"inner_product_param {{ num_output: {out} {filler} }}")

    def dropout(self, x: str) -> str:
        """In-place dropout."""
        return self.add("Dropout", self.fresh("drop"), (x,), "dropout_param { dropout_ratio: 0.5 }", top=x)

    def loss(self, x: str) -> str:
        """Softmax and cross entropy against the labels; return the whole net's text."""
        self.add("SoftmaxWithLoss", "loss", (x, "label"))
        return self.text


def alexnet(width: float, pixels: int, norm_first: bool = True) -> str:
    """Five convolutions, some in two groups, with LRN before the pooling (CaffeNet: after it)."""
    net = Builder(width, pixels)
    x = net.conv_relu("data", net.channels(96, 2), 11, 4, 0)
    x = net.pool(net.lrn(x), 3, 2) if norm_first else net.lrn(net.pool(x, 3, 2))
    x = net.conv_relu(x, net.channels(256, 2), 5, extra="group: 2")
    x = net.pool(net.lrn(x), 3, 2) if norm_first else net.lrn(net.pool(x, 3, 2))
    x = net.conv_relu(x, net.channels(384, 2), 3)
    x = net.conv_relu(x, net.channels(384, 2), 3, extra="group: 2")
    x = net.pool(net.conv_relu(x, net.channels(256, 2), 3, extra="group: 2"), 3, 2)
    for _ in range(2):
        x = net.dropout(net.relu(net.dense(x, net.channels(4096))))
    return net.loss(net.dense(x, net.channels(1000)))


def caffenet(width: float, pixels: int) -> str:
    """AlexNet with pooling before LRN."""
    return alexnet(width, pixels, norm_first=False)


def vgg16(width: float, pixels: int) -> str:
    """Thirteen 3x3 convolutions in five stages."""
    net = Builder(width, pixels)
    x = "data"
    for count, out in ((2, 64), (2, 128), (3, 256), (3, 512), (3, 512)):
        for _ in range(count):
            x = net.conv_relu(x, net.channels(out), 3)
        x = net.pool(x, 2, 2)
    for _ in range(2):
        x = net.dropout(net.relu(net.dense(x, net.channels(4096))))
    return net.loss(net.dense(x, net.channels(1000)))


def googlenet(width: float, pixels: int) -> str:
    """Nine inception blocks of four branches."""
    net = Builder(width, pixels)
    c = net.channels
    x = net.lrn(net.pool(net.conv_relu("data", c(64), 7, 2), 3, 2))
    x = net.pool(net.lrn(net.conv_relu(net.conv_relu(x, c(64), 1), c(192), 3)), 3, 2)
    blocks = (
        (64, 96, 128, 16, 32, 32),
        (128, 128, 192, 32, 96, 64),
        (),
        (192, 96, 208, 16, 48, 64),
        (160, 112, 224, 24, 64, 64),
        (128, 128, 256, 24, 64, 64),
        (112, 144, 288, 32, 64, 64),
        (256, 160, 320, 32, 128, 128),
        (),
        (256, 160, 320, 32, 128, 128),
        (384, 192, 384, 48, 128, 128),
    )
    for block in blocks:
        if not block:
            x = net.pool(x, 3, 2)
            continue
        one, before3, three, before5, five, pooled = map(c, block)
        x = net.concat(
            net.conv_relu(x, one, 1),
            net.conv_relu(net.conv_relu(x, before3, 1), three, 3),
            net.conv_relu(net.conv_relu(x, before5, 1), five, 5),
            net.conv_relu(net.pool(x, 3, 1, pad=1), pooled, 1),
        )
    return net.loss(net.dense(net.dropout(net.pool(x, 0, 1, "AVE")), c(1000)))


def resnet50(width: float, pixels: int) -> str:
    """Sixteen bottleneck blocks."""
    net = Builder(width, pixels)
    x = net.pool(net.conv_norm("data", net.channels(64), 7, 2), 3, 2)
    for stage, (blocks, out) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512))):
        inner, outer = net.channels(out), net.channels(4 * out)
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            y = net.conv_norm(net.conv_norm(x, inner, 1, stride), inner, 3)
            short = x if block else net.conv_norm(x, outer, 1, stride, active=False)
            x = net.relu(net.plus(short, net.conv_norm(y, outer, 1, active=False)))
    return net.loss(net.dense(net.pool(x, 0, 1, "AVE"), net.channels(1000)))


def mobilenet_v1(width: float, pixels: int) -> str:
    """Thirteen depthwise separable blocks."""
    net = Builder(width, pixels)
    channels = net.channels(32)
    x = net.conv_norm("data", channels, 3, 2)
    plan = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *((512, 1),) * 5, (1024, 2), (1024, 1))
    for out, stride in plan:
        x = net.conv_norm(x, channels, 3, stride, f"group: {channels}")
        channels = net.channels(out)
        x = net.conv_norm(x, channels, 1)
    return net.loss(net.dense(net.pool(x, 0, 1, "AVE"), net.channels(1000)))


def mobilenet_v2(width: float, pixels: int) -> str:
    """Seventeen inverted residuals with linear ends."""
    net = Builder(width, pixels)
    channels = net.channels(32)
    x = net.conv_norm("data", channels, 3, 2)
    plan = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
    for factor, number, count, first in plan:
        for block in range(count):
            stride, out, wide = (1 if block else first), net.channels(number), factor * channels
            y = net.conv_norm(x, wide, 1) if factor > 1 else x
            y = net.conv_norm(y, wide, 3, stride, f"group: {wide}")
            y = net.conv_norm(y, out, 1, active=False)
            x, channels = (net.plus(x, y) if block else y), out
    x = net.conv_norm(x, net.channels(1280), 1)
    return net.loss(net.dense(net.pool(x, 0, 1, "AVE"), net.channels(1000)))


def squeezenet(width: float, pixels: int) -> str:
    """Eight fire modules and a convolution for a classifier."""
    net = Builder(width, pixels)
    x = net.pool(net.conv_relu("data", net.channels(64), 3, 2, 0), 3, 2)
    for squeeze, expand, pooled in (
        (16, 64, 0),
        (16, 64, 1),
        (32, 128, 0),
        (32, 128, 1),
        (48, 192, 0),
        (48, 192, 0),
        (64, 256, 0),
        (64, 256, 0),
    ):
        y = net.conv_relu(x, net.channels(squeeze), 1)
        x = net.concat(net.conv_relu(y, net.channels(expand), 1), net.conv_relu(y, net.channels(expand), 3))
        x = net.pool(x, 3, 2) if pooled else x
    x = net.conv_relu(net.dropout(x), net.channels(1000), 1)
    return net.loss(net.pool(x, 0, 1, "AVE"))


def densenet(width: float, pixels: int, blocks: tuple[int, ...] = (6, 12, 24, 16)) -> str:
    """Dense blocks: batch norm and ReLU come first, and every layer sees all before it."""
    net = Builder(width, pixels)
    growth, channels = net.channels(32), net.channels(64)
    x = net.pool(net.conv_norm("data", channels, 7, 2), 3, 2)

    def apart(x: str) -> str:
        top = net.add("BatchNorm", net.fresh("bn"), (x,))
        return net.relu(net.add("Scale", net.fresh("scale"), (top,), "scale_param { bias_term: true }", top=top))

    for index, count in enumerate(blocks):
        for _ in range(count):
            y = net.conv_norm(apart(x), 4 * growth, 1)
            x = net.concat(x, net.conv(y, growth, 3, extra="bias_term: false"))
            channels += growth
        if index + 1 < len(blocks):
            channels //= 2
            x = net.pool(net.conv(apart(x), channels, 1, extra="bias_term: false"), 2, 2, "AVE")
    return net.loss(net.dense(net.pool(apart(x), 0, 1, "AVE"), net.channels(1000)))


def fcn(width: float, pixels: int) -> str:
    """Segmentation: scores at two scales, upsampled, cropped, added; a loss for each pixel."""
    net = Builder(width, pixels, labels="dim: {batch} dim: 1 dim: {pixels} dim: {pixels}")
    classes = 5

    def up(x: str, kernel: int, stride: int) -> str:
        sizes = f"num_output: {classes} group: {classes} kernel_size: {kernel} stride: {stride} bias_term: false"
        filler = 'weight_filler { type: "bilinear" }'
        return net.add("Deconvolution", net.fresh("up"), (x,), f"convolution_param {{ {sizes} {filler} }}")

    def crop(x: str, like: str, offset: int) -> str:
        return net.add("Crop", net.fresh("crop"), (x, like), f"crop_param {{ axis: 2 offset: {offset} }}")

    x = net.pool(net.conv_relu("data", net.channels(64), 3, 1, 8), 2, 2)
    near = net.pool(net.conv_relu(x, net.channels(128), 3), 2, 2)
    far = net.pool(net.conv_relu(near, net.channels(256), 3), 2, 2)
    far = net.dropout(net.conv_relu(far, net.channels(512), 3, extra="dilation: 2", pad=2))
    score = net.conv(near, classes, 1)
    score = net.plus(score, crop(up(net.conv(far, classes, 1), 4, 2), score, 1))
    return net.loss(crop(up(score, 8, 4), "data", 10))


def ssd(width: float, pixels: int) -> str:
    """Heads on several scales, flattened and joined, as far as stock Caffe has the layers."""
    net = Builder(width, pixels, labels="dim: {batch}")
    x, heads = "data", []
    for out in (32, 64, 128):
        x = net.pool(net.conv_relu(net.conv_relu(x, net.channels(out), 3), net.channels(out), 3), 2, 2)
        heads.append(net.add("Flatten", net.fresh("flat"), (net.conv(x, 8, 3),)))
    return net.loss(net.dense(net.concat(*heads), 5))


STYLES: dict[str, tuple[Callable[[float, int], str], float, int, float, int]] = {
    # style: builder, width and pixels of the small size, width and pixels of the full size
    "alexnet": (alexnet, 1 / 16, 99, 1, 227),
    "caffenet": (caffenet, 1 / 16, 99, 1, 227),
    "vgg16": (vgg16, 1 / 16, 32, 1, 224),
    "googlenet": (googlenet, 1 / 8, 64, 1, 224),
    "resnet50": (resnet50, 1 / 16, 64, 1, 224),
    "mobilenet_v1": (mobilenet_v1, 1 / 8, 64, 1, 224),
    "mobilenet_v2": (mobilenet_v2, 1 / 8, 64, 1, 224),
    "squeezenet": (squeezenet, 1 / 8, 64, 1, 227),
    "densenet": (densenet, 1 / 8, 64, 1, 224),
    "fcn": (fcn, 1 / 16, 40, 1, 500),
    "ssd": (ssd, 1 / 8, 40, 1, 300),
}


def small(style: str) -> str:
    """Text of a style at the size that runs in a test."""
    build, width, pixels, _, _ = STYLES[style]
    return build(width, pixels)


def full(style: str) -> str:
    """Text of a style at the size that people train."""
    build, _, _, width, pixels = STYLES[style]
    return build(width, pixels)
