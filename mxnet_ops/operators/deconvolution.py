"""Deconvolution (transposed convolution), with the attributes of MXNet's Deconvolution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from clgraft import core
from clgraft.core.nn import convolution
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

    def _problem(self, data: Shape, dtype: str = "float32") -> core.DeconvProblem:
        pad, adj, given = self.pad, self.adj, self._sizes(data)
        if any(self.target_shape):
            whole = convolution.whole_size(given["in_size"], self.kernel, self.stride, self.dilate)
            if any(target > size for target, size in zip(self.target_shape, whole)):
                raise self.error("target_shape", self.target_shape, f"at most {whole} for data of shape {data}")
            pad, end = convolution.pads_to_size(whole, self.target_shape, larger_first=True)
            adj = tuple(p - e for p, e in zip(pad, end))
        elif any(a >= s for a, s in zip(adj, self.stride)):
            raise self.error("adj", adj, f"less than stride {self.stride}")
        try:
            return core.DeconvProblem(
                direction="forward",
                dtype=dtype,
                **given,
                out_channels=self.num_filter,
                groups=self.num_group,
                kernel=self.kernel,
                stride=self.stride,
                dilate=self.dilate,
                pad_begin=pad,
                pad_end=pad,
                adj=adj,
                bias=not self.no_bias,
            )
        except core.ProblemError as error:
            raise core.ProblemError(f"[{self.op_type}] data of shape {data} does not fit: {error}") from None
