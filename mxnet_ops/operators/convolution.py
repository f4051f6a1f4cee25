"""Convolution and depthwise convolution, with the attributes of MXNet's Convolution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from clgraft.core.nn import convolution
from clgraft.core.nn.builder import Build, Tensor
from clgraft.mxnet_ops.engine.attributes import Attributes
from clgraft.mxnet_ops.engine.operator import LAYER, Operator, Shape, Shapes
from clgraft.mxnet_ops.engine.registry import register

LAYOUTS = {1: ("NCW", "NWC"), 2: ("NCHW", "NHWC"), 3: ("NCDHW", "NDHWC")}


@register
@dataclass(frozen=True)
class Convolution(Operator):
    """``ocl_conv``: data (N, C, spatial...), weight (num_filter, C / num_group, kernel...), bias (num_filter,).

    In channels last: data (N, spatial..., C), weight (num_filter, kernel..., C / num_group).

    Parameters
    ----------
    kernel, stride, dilate, pad : tuples of 1 to 3 numbers
        As of MXNet's Convolution; stride and dilate are 1 and pad is 0 where not given.
    num_filter : int
        Output channels.
    num_group : int
        Groups; 0 stands for one group per input channel.
    no_bias : bool
    layout : str
        ``NCW NCHW NCDHW`` by default, or channels last, ``NWC NHWC NDHWC``, which MXNet's operator has on no CPU.
    """

    op_type: ClassVar[str] = "ocl_conv"
    chain_place: ClassVar[int] = LAYER
    vectors: ClassVar[frozenset[str]] = frozenset({"bias"})
    usually_no_bias: ClassVar[bool] = False
    transposed: ClassVar[bool] = False

    kernel: Shape
    stride: Shape
    dilate: Shape
    pad: Shape
    num_filter: int
    num_group: int
    no_bias: bool
    layout: str

    @property
    def inferred(self) -> tuple[str, ...]:
        return ("weight",)

    @property
    def arguments(self) -> tuple[str, ...]:
        return ("data", "weight") if self.no_bias else ("data", "weight", "bias")

    @classmethod
    def read(cls, attributes: Attributes) -> Convolution:
        kernel = attributes.sizes("kernel", low=1)
        ndim = len(kernel)
        if ndim > 3:
            raise attributes.error("kernel", kernel, "1 to 3 numbers")
        spatial = {}
        for name, default, low in (("stride", 1, 1), ("dilate", 1, 1), ("pad", 0, 0)):
            spatial[name] = attributes.sizes(name, (default,) * ndim, low)
            if len(spatial[name]) != ndim:
                raise attributes.error(name, spatial[name], f"{ndim} numbers, as many as kernel {kernel}")
        attributes.ignore("workspace", "cudnn_tune", "cudnn_off")
        operator = cls(
            kernel=kernel,
            num_filter=attributes.integer("num_filter", low=1),
            num_group=cls.read_groups(attributes),
            no_bias=attributes.flag("no_bias", cls.usually_no_bias),
            layout=attributes.choice("layout", LAYOUTS[ndim], LAYOUTS[ndim][0]),
            **spatial,
            **cls.read_more(attributes, kernel),
        )
        if operator.num_group and operator.num_filter % operator.num_group:
            raise attributes.error("num_filter", operator.num_filter, f"a multiple of num_group {operator.num_group}")
        return operator

    @staticmethod
    def read_groups(attributes: Attributes) -> int:
        """Read num_group."""
        return attributes.integer("num_group", 1, low=1)

    @classmethod
    def read_more(cls, attributes: Attributes, kernel: Shape) -> dict[str, Any]:
        """Read what a subclass has beyond these attributes."""
        return {}

    @property
    def channels_last(self) -> bool:
        """Whether the channels are the last axis."""
        return self.layout.endswith("C")

    def infer(self, shapes: Sequence[Shape | None]) -> Shapes | None:
        data = shapes[0]
        if data is None:
            return None
        ndim = len(self.kernel) + 2
        if len(data) != ndim:
            raise self.error("data", f"of shape {data}", f"{ndim} axes, {self.layout}, for kernel {self.kernel}")
        weight = convolution.weight_shape(
            data,
            self.num_filter,
            self.kernel,
            groups=self._groups(data),
            channels_last=self.channels_last,
            transposed=self.transposed,
        )
        needed = [data, weight, (self.num_filter,)][: len(self.arguments)]
        outputs = self.built(needed)
        self.agree(shapes, needed)
        return needed, outputs, []

    def _groups(self, data: Shape) -> int:
        return self.num_group or data[-1 if self.channels_last else 1]

    def build(self, build: Build, data: Tensor, *parameters: Tensor) -> Tensor:
        return convolution.convolution(build, data, *parameters, **self._attributes(data.shape))

    def _attributes(self, data: Shape) -> dict[str, Any]:
        """Return the arguments of the function that computes it."""
        sizes = {"stride": self.stride, "pad": self.pad, "dilate": self.dilate}
        return {**sizes, "groups": self._groups(data), "channels_last": self.channels_last}


@register
@dataclass(frozen=True)
class DepthwiseConvolution(Convolution):
    """``ocl_depthwise_conv``: every input channel has num_filter / C filters of its own.

    As ``ocl_conv``, but num_group is the number of channels where it is not given.
    """

    op_type: ClassVar[str] = "ocl_depthwise_conv"

    @staticmethod
    def read_groups(attributes: Attributes) -> int:
        return attributes.integer("num_group", 0, low=0)
