"""Convolution layers: OclConvolution, OclDepthwiseConvolution for the types of Caffe's forks, and OclIm2col."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from clgraft.caffe_layers.layers.built import BuiltLayer
from clgraft.caffe_layers.layers.layer import MANY, same_shapes
from clgraft.core.nn import convolution
from clgraft.core.nn import shapes as moves
from clgraft.core.nn.builder import Build


class OclConvolution(BuiltLayer):
    """Convolution; blobs w (out, in / group, kernel...) and, with `bias_term`, b (out).

    Up to three spatial axes. Several bottoms share the weights, each with a top of its own. `engine` and
    `force_nd_im2col` change nothing.
    """

    word: ClassVar[str] = "conv"
    bottoms: ClassVar[tuple] = (1, MANY)
    tops: ClassVar[tuple] = (1, MANY)
    may_be_in_place: ClassVar[bool] = False
    transposed: ClassVar[bool] = False

    def configure(self, shapes: list) -> None:
        given = self.parameters.convolution_param
        self.expect(
            self.top_count == self.bottom_count, f"{self.top_count} top blobs", f"{self.bottom_count}, one per bottom"
        )
        self.axis = self.canonical_axis(given.axis, len(shapes[0]))
        self.spatial = len(shapes[0]) - self.axis - 1
        self.kernel = self.per_axis("kernel_size", "kernel", None)
        self.stride = self.per_axis("stride", "stride", 1)
        self.pad = self.per_axis("pad", "pad", 0)
        self.dilation = self.per_axis("dilation", None, 1)
        for name, sizes in (("kernel_size", self.kernel), ("stride", self.stride), ("dilation", self.dilation)):
            self.expect(all(size > 0 for size in sizes), f"{name} {sizes}", "numbers of at least 1")
        self.in_channels = shapes[0][self.axis]
        self.out_channels, self.groups = self.channels(given)
        self.expect(self.out_channels > 0, f"num_output {self.out_channels}", "at least 1")
        for name, count in (("input channels", self.in_channels), ("num_output", self.out_channels)):
            self.expect(
                self.groups > 0 and count % self.groups == 0, f"{count} {name}", f"a multiple of group {self.groups}"
            )
        self.bias = bool(given.bias_term)
        self.make_blobs(*self.wanted_blobs(given))

    def wanted_blobs(self, given: Any) -> list:
        """Return the blobs, as `make_blobs` takes them."""
        blobs = [(self.weight_shape(), given.weight_filler)]
        if self.bias:
            blobs.append(((self.out_channels,), given.bias_filler))
        return blobs

    def channels(self, given: Any) -> tuple:
        """Return output channels and groups."""
        return given.num_output, given.group

    def weight_shape(self) -> tuple:
        """Return the shape of the weights."""
        channels = (1, self.in_channels)
        return convolution.weight_shape(
            channels, self.out_channels, self.kernel, groups=self.groups, transposed=self.transposed
        )

    def per_axis(self, name: str, short: Any, default: Any) -> tuple:
        """Read a repeated field or its `_h` and `_w` forms as one number per spatial axis."""
        given = self.parameters.convolution_param
        values = tuple(getattr(given, name))
        if short and (given.HasField(f"{short}_h") or given.HasField(f"{short}_w")):
            self.expect(not values, f"{name} together with {short}_h and {short}_w", "one of the two forms")
            self.expect(self.spatial == 2, f"{short}_h and {short}_w", f"{name}: there are {self.spatial} spatial axes")
            return getattr(given, f"{short}_h"), getattr(given, f"{short}_w")
        if not values and default is not None:
            values = (default,)
        if len(values) == 1 or (not values and not self.spatial):
            return values[:1] * self.spatial
        expected = f"one number or {self.spatial}, one per spatial axis"
        self.expect(len(values) == self.spatial, f"{name} {values}", expected)
        return values

    def prepare(self, shapes: list) -> list:
        same_shapes(self, shapes)
        shape = shapes[0]
        ndim = self.axis + 1 + self.spatial
        self.expect(len(shape) == ndim, f"shape {shape}", f"{ndim} axes")
        self.expect(shape[self.axis] == self.in_channels, f"{shape[self.axis]} input channels", self.in_channels)
        return super().prepare(shapes)

    def build(self, build: Build, bottoms: list, blobs: list) -> tuple:
        outer, size = bottoms[0].shape[: self.axis], bottoms[0].shape[self.axis + 1 :]
        images = (build.reshape(x, (math.prod(outer), self.in_channels, *size)) for x in bottoms)
        function = convolution.deconvolution if self.transposed else convolution.convolution
        given = {"stride": self.stride, "pad": self.pad, "dilate": self.dilation, "groups": self.groups}
        tops = (function(build, x, *blobs, **given) for x in images)
        return tuple(build.reshape(y, (*outer, *y.shape[1:])) for y in tops)


class OclDepthwiseConvolution(OclConvolution):
    """Depthwise convolution.

    Of type ``Convolution`` or ``DepthwiseConvolution`` it reads the stock fields; of type ``ConvolutionDepthwise`` it
    ignores `num_output` and `group`, as that fork does: every channel has one filter, w is (channels, 1, kernel...).
    """

    def kinds(self) -> tuple:
        return ("Convolution", "DepthwiseConvolution", "ConvolutionDepthwise")

    def channels(self, given: Any) -> tuple:
        if self.parameters.type == "ConvolutionDepthwise":
            return self.in_channels, self.in_channels
        return super().channels(given)


class OclIm2col(OclConvolution):
    """For every window the pixels that a convolution reads there, as channels: the first channel's come first."""

    word: ClassVar[str] = "im2col"
    bottoms: ClassVar[tuple] = (1, 1)
    tops: ClassVar[tuple] = (1, 1)

    def channels(self, given: Any) -> tuple:
        return 1, 1  # nothing is summed

    def wanted_blobs(self, given: Any) -> list:
        return []

    def build(self, build: Build, bottoms: list, blobs: list) -> Any:
        (x,) = bottoms
        outer, size = x.shape[: self.axis], x.shape[self.axis + 1 :]
        images = build.reshape(x, (math.prod(outer), self.in_channels, *size))
        given = {"stride": self.stride, "pad": self.pad, "dilate": self.dilation}
        y = moves.windows_as_channels(build, images, self.kernel, **given)
        return build.reshape(y, (*outer, *y.shape[1:]))
