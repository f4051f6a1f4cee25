"""Joining and splitting along an axis: MXNet's Concat, stack and SliceChannel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from clgraft.core.nn import shapes as moves
from clgraft.core.nn.builder import Build, Tensor
from clgraft.mxnet_ops.engine.attributes import Attributes
from clgraft.mxnet_ops.engine.operator import Operator, Shape, Shapes
from clgraft.mxnet_ops.engine.registry import register


class Joining(Operator):
    """What both have in common: many parts, one whole, and an axis."""

    def axis_of(self, name: str, axis: int, ndim: int) -> int:
        """Count a negative axis from the end."""
        if not -ndim <= axis < ndim:
            raise self.error(name, axis, f"an axis of {ndim} dimensions")
        return axis % ndim


@register
@dataclass(frozen=True)
class Concat(Joining):
    """``ocl_concat``: inputs data0, data1, ... joined along an axis.

    Parameters
    ----------
    num_args : int
        Number of inputs.
    dim : int
        The axis; 1 by default. Negative ones count from the end.
    new_axis : bool
        Join equal shapes along an axis of its own (MXNet's stack). False by default.
    """

    op_type: ClassVar[str] = "ocl_concat"

    num_args: int
    dim: int
    new_axis: bool

    @property
    def arguments(self) -> tuple[str, ...]:
        return tuple(f"data{i}" for i in range(self.num_args))

    @classmethod
    def read(cls, attributes: Attributes) -> Concat:
        count, dim = attributes.integer("num_args", low=1), attributes.integer("dim", 1)
        return cls(count, dim, attributes.flag("new_axis", False))

    def _axis(self, shape: Shape) -> int:
        return self.axis_of("dim", self.dim, len(shape) + self.new_axis)

    def infer(self, shapes: Sequence[Shape | None]) -> Shapes | None:
        known = [shape for shape in shapes if shape is not None]
        if len(known) < len(shapes):
            return None
        first = known[0]
        axis = self._axis(first)
        if self.new_axis:
            self.agree(shapes, [first] * self.num_args)
            return known, self.built(known), []
        for name, shape in zip(self.arguments, known):
            if len(shape) != len(first) or any(a != b for i, (a, b) in enumerate(zip(shape, first)) if i != axis):
                raise self.error(name, f"of shape {shape}", f"the shape {first} but for axis {axis}")
        return known, self.built(known), []

    def build(self, build: Build, *parts: Tensor) -> Tensor:
        axis = self._axis(parts[0].shape)
        if self.new_axis:
            parts = tuple(build.reshape(part, moves.with_ones(part.shape, {axis})) for part in parts)
        return moves.joined(build, parts, axis)


@register
@dataclass(frozen=True)
class Split(Joining):
    """``ocl_split``: data cut into equal parts along an axis.

    Parameters
    ----------
    num_outputs : int
    axis : int
        1 by default. Negative ones count from the end.
    squeeze_axis : bool
        Leave out the axis, whose size has to be `num_outputs`. False by default.
    """

    op_type: ClassVar[str] = "ocl_split"

    num_outputs: int
    axis: int
    squeeze_axis: bool

    @property
    def outputs(self) -> tuple[str, ...]:
        return ("output",) if self.num_outputs == 1 else tuple(f"output{i}" for i in range(self.num_outputs))

    @classmethod
    def read(cls, attributes: Attributes) -> Split:
        count, axis = attributes.integer("num_outputs", low=1), attributes.integer("axis", 1)
        return cls(count, axis, attributes.flag("squeeze_axis", False))

    def infer(self, shapes: Sequence[Shape | None]) -> Shapes | None:
        data = shapes[0]
        if data is None:
            return None
        axis = self.axis_of("axis", self.axis, len(data))
        if data[axis] % self.num_outputs:
            raise self.error("num_outputs", self.num_outputs, f"a divisor of {data[axis]}, the size of axis {axis}")
        if self.squeeze_axis and data[axis] != self.num_outputs:
            raise self.error("squeeze_axis", True, f"an axis of size {self.num_outputs}, not {data[axis]}")
        return [data], self.built([data]), []

    def build(self, build: Build, data: Tensor) -> tuple[Tensor, ...]:
        axis = self.axis_of("axis", self.axis, data.ndim)
        parts = moves.split(build, data, axis, moves.parts_of(data.shape[axis], count=self.num_outputs))
        if not self.squeeze_axis:
            return parts
        return tuple(build.reshape(part, moves.without_ones(part.shape, {axis}) or (1,)) for part in parts)
