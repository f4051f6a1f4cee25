"""Softmax: MXNet's softmax, log_softmax, softmin and SoftmaxActivation in one operator."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from clgraft.core.nn import softmax
from clgraft.core.nn.builder import Build, Tensor
from clgraft.mxnet_ops.engine.attributes import Attributes
from clgraft.mxnet_ops.engine.operator import Operator, Shape, Shapes
from clgraft.mxnet_ops.engine.registry import register


def temperature_of(attributes: Attributes, name: str = "temperature") -> float:
    """Read what data are divided by."""
    found = attributes.number(name, 1.0)
    if found == 0 or not math.isfinite(found):
        raise attributes.error(name, found, "a finite number other than 0")
    return found


@register
@dataclass(frozen=True)
class Softmax(Operator):
    """``ocl_softmax``: of any shape, along one axis.

    Parameters
    ----------
    function : str
        ``softmax`` (default), ``log_softmax`` or ``softmin``.
    axis : int
        The axis; -1 by default.
    temperature : float
        Data are divided by it first; 1 by default.

    Notes
    -----
    A result of another dtype than data's is refused, and so are lengths (`use_length`), which regions have as a
    softmax of their own (`mxnet_ops.operators.inner_attention`).
    """

    op_type: ClassVar[str] = "ocl_softmax"
    in_place: ClassVar[bool] = True
    backward_reads_outputs: ClassVar[bool] = True

    function: str
    axis: int
    temperature: float

    @classmethod
    def read(cls, attributes: Attributes) -> Softmax:
        operator = cls(
            function=attributes.choice("function", ("softmax", "log_softmax", "softmin"), "softmax"),
            axis=attributes.integer("axis", -1),
            temperature=temperature_of(attributes),
        )
        dtype = attributes.text("dtype", "")
        if dtype:
            raise attributes.error("dtype", dtype, "none: the result has data's")
        if attributes.flag("use_length", False):
            raise attributes.error("use_length", True, "False")
        return operator

    def infer(self, shapes: Sequence[Shape | None]) -> Shapes | None:
        data = shapes[0]
        if data is None:
            return None
        if not -len(data) <= self.axis < len(data):
            raise self.error("axis", self.axis, f"an axis of data of shape {data}")
        return [data], [data], []

    def build(self, build: Build, data: Tensor) -> Tensor:
        sizes = softmax.around(data.shape, self.axis % data.ndim)
        given = {"log": self.function == "log_softmax", "negated": self.function == "softmin"}
        return softmax.softmax(build, data, sizes, temperature=self.temperature, **given)
