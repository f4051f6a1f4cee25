"""Pooling, with the attributes of MXNet's Pooling, and adaptive pooling, which MXNet lacks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from clgraft.core.nn import adaptive_averages, pooling
from clgraft.core.nn.builder import Build, Tensor
from clgraft.mxnet_ops.engine.attributes import Attributes
from clgraft.mxnet_ops.engine.operator import Operator, Shape, Shapes
from clgraft.mxnet_ops.engine.registry import register

LAYOUTS = {1: ("NCW", "NWC"), 2: ("NCHW", "NHWC"), 3: ("NCDHW", "NDHWC")}
OPERATORS = {"max": "max", "avg": "average", "sum": "sum", "lp": "lp"}
ROUNDINGS = {"valid": "floor", "full": "ceil"}
POWERS = (1, 2, 3)


@register
@dataclass(frozen=True)
class Pooling(Operator):
    """``ocl_pooling``: data (N, C, spatial...), or (N, spatial..., C) by layout, of 1 to 3 spatial axes.

    Parameters
    ----------
    pool_type : str
        ``max`` (default), ``avg``, ``sum``, or ``lp``: (sum x^p)^(1/p) without absolute values.
    kernel, stride, pad : tuples of 1 to 3 numbers
        As of MXNet's Pooling; stride is 1 and pad is 0 where not given.
    global_pool : bool
        Take all of the input; kernel, stride and pad are then ignored.
    pooling_convention : str
        ``valid`` (default): all windows lie in the padded input; ``full``: the last may reach beyond.
    p_value : int
        Of lp: 1, 2 or 3.
    count_include_pad : bool
        Whether avg counts padding. True by default.
    layout : str
        ``NCW NCHW NCDHW`` by default, or channels last, ``NWC NHWC NDHWC``.
    """

    op_type: ClassVar[str] = "ocl_pooling"

    operator: str
    kernel: Shape
    stride: Shape
    pad: Shape
    global_pool: bool
    rounding: str
    count_include_pad: bool
    layout: str

    @property
    def channels_last(self) -> bool:
        """Whether the channels are the last axis."""
        return self.layout.endswith("C") and self.layout != "NC"

    @property
    def backward_reads_outputs(self) -> bool:  # type: ignore[override]
        return pooling.gradient_reads_values(self.operator)

    @classmethod
    def read(cls, attributes: Attributes) -> Pooling:
        global_pool = attributes.flag("global_pool", False)
        operator = OPERATORS[attributes.choice("pool_type", OPERATORS, "max")]
        if operator == "lp":
            power = attributes.integer("p_value")
            if power not in POWERS:
                raise attributes.error("p_value", power, f"one of {POWERS}")
            operator += str(power)
        else:
            attributes.ignore("p_value")
        rounding = ROUNDINGS[attributes.choice("pooling_convention", ROUNDINGS, "valid")]
        kernel = attributes.sizes("kernel", () if global_pool else None, low=0 if global_pool else 1)
        stride = attributes.sizes("stride", (1,) * len(kernel), low=0 if global_pool else 1)
        pad = attributes.sizes("pad", (0,) * len(kernel))
        if global_pool:
            kernel = stride = pad = ()
            rounding = "floor"
        if len(kernel) > max(LAYOUTS):
            raise attributes.error("kernel", kernel, "1 to 3 numbers")
        for name, value in (("stride", stride), ("pad", pad)):
            if len(value) != len(kernel):
                raise attributes.error(name, value, f"{len(kernel)} numbers, as many as kernel {kernel}")
        layouts = [layout for both in LAYOUTS.values() for layout in both]
        layout = attributes.choice("layout", layouts, "NC")
        if kernel and layout != "NC" and layout not in LAYOUTS[len(kernel)]:
            raise attributes.error("layout", repr(layout), f"one of {LAYOUTS[len(kernel)]} for kernel {kernel}")
        count_include_pad = attributes.flag("count_include_pad", True)
        attributes.ignore("cudnn_off")
        return cls(operator, kernel, stride, pad, global_pool, rounding, count_include_pad, layout)

    def infer(self, shapes: Sequence[Shape | None]) -> Shapes | None:
        data = shapes[0]
        if data is None:
            return None
        ndim = len(self.layout if self.layout != "NC" else self.kernel) + 2 * (self.layout == "NC")
        if self.layout == "NC" and self.global_pool:
            ndim = min(max(len(data), 3), 5)
        if len(data) != ndim:
            raise self.error("data", f"of shape {data}", f"{ndim} axes, one of {LAYOUTS[ndim - 2]}")
        return [data], self.built([data]), []

    def build(self, build: Build, data: Tensor) -> Tensor:
        return pooling.pool(
            build,
            data,
            self.operator,
            self.kernel,
            stride=self.stride,
            pad=self.pad,
            pad_end=self.pad,
            rounding=self.rounding,
            count_padding=self.count_include_pad,
            channels_last=self.channels_last,
        )


@dataclass(frozen=True)
class _AdaptivePooling(Operator):
    """Windows that share an image out: so many of each axis."""

    output_size: Shape

    @classmethod
    def read(cls, attributes: Attributes) -> _AdaptivePooling:
        return cls(attributes.sizes("output_size", low=1))

    def infer(self, shapes: Sequence[Shape | None]) -> Shapes | None:
        (data,) = shapes
        if data is None:
            return None
        if not 3 <= len(data) <= 5 or len(data) != len(self.output_size) + 2:
            raise self.error("data", f"of shape {data}", f"3 to 5 axes, for output_size {self.output_size}")
        return [data], self.built([data]), []


@register
@dataclass(frozen=True)
class AdaptiveMaxPooling(_AdaptivePooling):
    """``ocl_adaptive_max_pooling``: data (N, C, spatial...) of 1 to 3 spatial axes -> output, indices.

    The indices are where in their planes the maxima stand, as numbers of the data's type, without a gradient.

    Parameters
    ----------
    output_size : tuple of 1 to 3 numbers
        Number of windows of each axis; they begin and end where PyTorch's do.
    """

    op_type: ClassVar[str] = "ocl_adaptive_max_pooling"
    outputs: ClassVar[tuple[str, ...]] = ("output", "indices")  # type: ignore[misc]
    backward_reads_outputs: ClassVar[bool] = True

    def build(self, build: Build, data: Tensor) -> tuple[Tensor, ...]:
        output, indices = pooling.adaptive_max_pool(build, data, self.output_size, indices=True)
        return output, build.without_gradient(build.cast(indices, data.dtype))


@register
@dataclass(frozen=True)
class AdaptiveAveragePooling(_AdaptivePooling):
    """``ocl_adaptive_average_pooling``: data (N, C, spatial...) of 1 to 3 spatial axes, averages of windows.

    Parameters
    ----------
    output_size : tuple of 1 to 3 numbers
        Number of windows of each axis; they begin and end as those of ``ocl_adaptive_max_pooling``.
    """

    op_type: ClassVar[str] = "ocl_adaptive_average_pooling"

    def build(self, build: Build, data: Tensor) -> Tensor:
        return adaptive_averages.adaptive_average_pool(build, data, self.output_size)
