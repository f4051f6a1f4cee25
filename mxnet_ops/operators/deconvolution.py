"""Deconvolution (transposed convolution), with the attributes of MXNet's Deconvolution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from clgraft.core.nn import convolution
from clgraft.core.nn.builder import Build, Tensor
from clgraft.mxnet_ops.engine.attributes import Attributes
from clgraft.mxnet_ops.engine.operator import Shape
from clgraft.mxnet_ops.engine.registry import register
from clgraft.mxnet_ops.operators.convolution import Convolution


@register
@dataclass(frozen=True)
class Deconvolution(Convolution):
    """``ocl_deconv``: data (N, C, spatial...), weight (C, num_filter / num_group, kernel...), bias (num_filter,).

    In channels last: data (N, spatial..., C), weight (C, kernel..., num_filter / num_group).

    Parameters
    ----------
    kernel, stride, dilate, pad, num_filter, num_group, layout
        As of ``ocl_conv``; padding is taken away from the output.
    no_bias : bool
        True by default.
    adj : tuple of numbers
        What the output is longer by at its end; less than the stride.
    target_shape : tuple of numbers
        The output's size. `pad` and `adj` are then ignored and follow from it: half of what is too long is taken away
        from either side, the larger half from the beginning. Zeros: not given.
    """

    op_type: ClassVar[str] = "ocl_deconv"
    usually_no_bias: ClassVar[bool] = True
    transposed: ClassVar[bool] = True

    adj: Shape
    target_shape: Shape

    @classmethod
    def read_more(cls, attributes: Attributes, kernel: Shape) -> dict[str, Any]:
        zeros = (0,) * len(kernel)
        more = {name: attributes.sizes(name, zeros) for name in ("adj", "target_shape")}
        for name, value in more.items():
            if len(value) != len(kernel):
                raise attributes.error(name, value, f"{len(kernel)} numbers, as many as kernel {kernel}")
        target = more["target_shape"]
        if any(target) and not all(target):
            raise attributes.error("target_shape", target, "numbers from 1, or zeros alone")
        return more

    def build(self, build: Build, data: Tensor, *parameters: Tensor) -> Tensor:
        given = self._attributes(data.shape)
        if not any(self.target_shape):
            if any(a >= s for a, s in zip(self.adj, self.stride)):
                raise self.error("adj", self.adj, f"less than stride {self.stride}")
            return convolution.deconvolution(build, data, *parameters, extra=self.adj, **given)
        pixels = data.shape[1:-1] if self.channels_last else data.shape[2:]
        whole = convolution.whole_size(pixels, self.kernel, self.stride, self.dilate)
        if any(target > size for target, size in zip(self.target_shape, whole)):
            raise self.error("target_shape", self.target_shape, f"at most {whole} for data of shape {data.shape}")
        return convolution.deconvolution(build, data, *parameters, **{**given, "pad": ()}, size=self.target_shape)
