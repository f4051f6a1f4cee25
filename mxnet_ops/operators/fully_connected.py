"""Dense layers, with the attributes of MXNet's FullyConnected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from clgraft.core.nn import products
from clgraft.core.nn.builder import Build, Tensor
from clgraft.mxnet_ops.engine.attributes import Attributes
from clgraft.mxnet_ops.engine.operator import LAYER, Operator, Shape, Shapes
from clgraft.mxnet_ops.engine.registry import register


@register
@dataclass(frozen=True)
class FullyConnected(Operator):
    """``ocl_fully_connected``: data (N, ...), weight (num_hidden, inputs), bias (num_hidden,).

    Parameters
    ----------
    num_hidden : int
        Outputs.
    no_bias : bool
        False by default.
    flatten : bool
        True (default): all axes of data but the first are the inputs, the output is (N, num_hidden). False: its last
        axis is, and the output keeps the others.
    """

    op_type: ClassVar[str] = "ocl_fully_connected"
    chain_place: ClassVar[int] = LAYER
    vectors: ClassVar[frozenset[str]] = frozenset({"bias"})

    num_hidden: int
    no_bias: bool
    flatten: bool

    @property
    def inferred(self) -> tuple[str, ...]:
        return ("weight",)

    @property
    def arguments(self) -> tuple[str, ...]:
        return ("data", "weight") if self.no_bias else ("data", "weight", "bias")

    @classmethod
    def read(cls, attributes: Attributes) -> FullyConnected:
        return cls(
            num_hidden=attributes.integer("num_hidden", low=1),
            no_bias=attributes.flag("no_bias", False),
            flatten=attributes.flag("flatten", True),
        )

    def infer(self, shapes: Sequence[Shape | None]) -> Shapes | None:
        data = shapes[0]
        if data is None:
            return None
        if not data:
            raise self.error("data", f"of shape {data}", "at least one axis")
        weight = products.weight_shape(data, self.num_hidden, axis=self._axis(data))
        needed = [data, weight, (self.num_hidden,)][: len(self.arguments)]
        outputs = self.built(needed)
        self.agree(shapes, needed)
        return needed, outputs, []

    def _axis(self, data: Shape) -> int:
        return 1 if self.flatten else len(data) - 1

    def build(self, build: Build, data: Tensor, *parameters: Tensor) -> Tensor:
        return products.dense(build, data, *parameters, axis=self._axis(data.shape))
