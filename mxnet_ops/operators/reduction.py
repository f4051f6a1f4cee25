"""Values folded over axes: MXNet's sum, mean, max and min."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from clgraft.core.nn import reductions
from clgraft.core.nn.builder import Build, Tensor
from clgraft.mxnet_ops.engine.attributes import Attributes
from clgraft.mxnet_ops.engine.operator import Operator, Shape, Shapes
from clgraft.mxnet_ops.engine.registry import register

OPERATIONS = ("sum", "mean", "max", "min")
EXTREMES = ("max", "min")


@register
@dataclass(frozen=True)
class Reduce(Operator):
    """``ocl_reduce``: data folded over some axes.

    Parameters
    ----------
    operation : str
        ``sum mean max min``. The gradient of max and min goes to every element that equals them, as in MXNet.
    axis : tuple of int
        All axes if not given.
    exclude : bool
        Fold the axes that `axis` does not name. False by default.
    keepdims : bool
        Leave the folded axes as 1. False by default; nothing left is the shape (1,).
    """

    op_type: ClassVar[str] = "ocl_reduce"

    operation: str
    axis: tuple[int, ...]
    exclude: bool
    keepdims: bool

    @property
    def backward_reads_outputs(self) -> bool:  # type: ignore[override]
        return self.operation in EXTREMES

    @classmethod
    def read(cls, attributes: Attributes) -> Reduce:
        operation = attributes.choice("operation", OPERATIONS)
        axis = attributes.sizes("axis", (), low=-32)
        return cls(operation, axis, attributes.flag("exclude", False), attributes.flag("keepdims", False))

    def _folded(self, data: Shape) -> set[int]:
        ndim = len(data)
        named = {axis % ndim for axis in self.axis if -ndim <= axis < ndim}
        if len(named) < len(self.axis):
            raise self.error("axis", self.axis, f"different axes of data of shape {data}")
        every = set(range(ndim))
        return every if not self.axis else every - named if self.exclude else named

    def infer(self, shapes: Sequence[Shape | None]) -> Shapes | None:
        data = shapes[0]
        if data is None:
            return None
        return [data], self.built([data]), []

    def build(self, build: Build, data: Tensor) -> Tensor:
        axes = self._folded(data.shape)
        y = reductions.folded(build, data, axes, self.operation)
        return build.reshape(y, reductions.kept_shape(data.shape, axes, self.keepdims) or (1,))
