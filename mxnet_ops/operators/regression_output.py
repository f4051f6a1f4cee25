"""Losses of regression at the end of a net: MXNet's Linear-, Logistic- and MAERegressionOutput."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from clgraft.core.nn import losses
from clgraft.core.nn.builder import Build, Tensor
from clgraft.mxnet_ops.engine.attributes import Attributes
from clgraft.mxnet_ops.engine.operator import Operator, Shape, Shapes
from clgraft.mxnet_ops.engine.registry import register


@register
@dataclass(frozen=True)
class RegressionOutput(Operator):
    """``ocl_regression_output``: data (n, ...), label of as many elements and the same n.

    Parameters
    ----------
    loss : str
        ``linear``: the output is data, its gradient output - label; ``logistic``: sigmoid(data), output - label;
        ``mae``: data, 1 where output > label and else -1.
    grad_scale : float
        The gradient is multiplied by it and divided by the label's elements per example; 1 by default.

    Notes
    -----
    The output's own gradient is not read. The gradient of label is 0; MXNet's own leaves that array as it is.
    """

    op_type: ClassVar[str] = "ocl_regression_output"
    in_place: ClassVar[bool] = True
    backward_reads_outputs: ClassVar[bool] = True
    backward_reads_gradients: ClassVar[bool] = False

    loss: str
    grad_scale: float

    @property
    def arguments(self) -> tuple[str, ...]:
        return ("data", "label")

    @property
    def inferred(self) -> tuple[str, ...]:
        return ("label",)

    @classmethod
    def read(cls, attributes: Attributes) -> RegressionOutput:
        return cls(attributes.choice("loss", losses.REGRESSIONS), attributes.number("grad_scale", 1.0))

    def infer(self, shapes: Sequence[Shape | None]) -> Shapes | None:
        data, label = shapes
        if data is None:
            return None
        if label is None:
            label = data[:1] if len(data) == 2 and data[1] == 1 else data
        if label[:1] != data[:1] or math.prod(label) != math.prod(data):
            raise self.error("label", f"of shape {label}", f"shape {data}, or one of as many elements")
        return [data, label], [data], []

    def shown_loss(self, build: Build, output: Tensor, label: Tensor) -> Tensor:
        """Return the mean of the loss, for a user to look at."""
        return losses.mean_of_regression(build, output, label, self.loss)

    def build(self, build: Build, data: Tensor, label: Tensor) -> Tensor:
        return losses.regression(build, data, label, self.loss, scale=self.grad_scale, by_elements=True)
