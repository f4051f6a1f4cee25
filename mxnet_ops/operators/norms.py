"""Norms over some axes: MXNet's LayerNorm, GroupNorm, InstanceNorm and L2Normalization."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import numpy as np

from clgraft.core.nn import norms
from clgraft.core.nn.builder import Build, Tensor
from clgraft.mxnet_ops.engine.attributes import Attributes
from clgraft.mxnet_ops.engine.operator import NORM, Operator, Shape, Shapes
from clgraft.mxnet_ops.engine.registry import register

Some = TypeVar("Some", bound="Affine")


def single(value: float) -> float:
    """Return a number as MXNet keeps it."""
    return float(np.float32(value))


class Affine(Operator):
    """What layer, group and instance norm share: data, gamma and beta, which have the size of one axis."""

    chain_place: ClassVar[int] = NORM
    vectors: ClassVar[frozenset[str]] = frozenset({"gamma", "beta"})

    eps: float

    @property
    def arguments(self) -> tuple[str, ...]:
        return ("data", "gamma", "beta")

    def without_statistics(self: Some, attributes: Attributes) -> Some:
        """Return itself, unless mean and variance are asked for as outputs."""
        if attributes.flag("output_mean_var", False):
            raise attributes.error("output_mean_var", True, "False")
        return self

    def layout(self, data: Shape) -> tuple[Shape, int, tuple[int, ...]]:
        """Return the shape that data are seen in, and there gamma's axis and the axes of mean and variance."""
        raise NotImplementedError

    def infer(self, shapes: Sequence[Shape | None]) -> Shapes | None:
        data = shapes[0]
        if data is None:
            return None
        view, axis, _ = self.layout(data)
        vector = (view[axis],)
        needed = [data, vector, vector]
        self.agree(shapes, needed)
        return needed, [data], []

    def build(self, build: Build, data: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
        view, axis, folded = self.layout(data.shape)
        along = (view[axis],) + (1,) * (len(view) - axis - 1)
        affine = build.reshape(gamma, along), build.reshape(beta, along)
        y, _ = norms.by_moments(build, build.reshape(data, view), *affine, folded, eps=single(self.eps))
        return build.reshape(y, data.shape)


@register
@dataclass(frozen=True)
class LayerNorm(Affine):
    """``ocl_layer_norm``: data of any shape, gamma and beta of the size of one axis, over which each place is normed.

    Parameters
    ----------
    axis : int
        -1 by default.
    eps : float
        Added to the variance; 1e-5 by default.

    Notes
    -----
    `output_mean_var` is refused.
    """

    op_type: ClassVar[str] = "ocl_layer_norm"

    axis: int
    eps: float

    @classmethod
    def read(cls, attributes: Attributes) -> LayerNorm:
        return cls(attributes.integer("axis", -1), attributes.number("eps", 1e-5)).without_statistics(attributes)

    def layout(self, data: Shape) -> tuple[Shape, int, tuple[int, ...]]:
        if not -len(data) <= self.axis < len(data):
            raise self.error("axis", self.axis, f"an axis of data of shape {data}")
        return data, self.axis % len(data), (self.axis % len(data),)


@register
@dataclass(frozen=True)
class GroupNorm(Affine):
    """``ocl_group_norm``: data (n, c, ...), gamma and beta (num_groups,); each group of channels is normed.

    The method: Wu and He 2018, "Group normalization", but with a gamma and beta per group, as MXNet has them.

    Parameters
    ----------
    num_groups : int
        1 by default; it divides c.
    eps : float
        Added to the variance; 1e-5 by default.

    Notes
    -----
    `output_mean_var` is refused.
    """

    op_type: ClassVar[str] = "ocl_group_norm"

    num_groups: int
    eps: float

    @classmethod
    def read(cls, attributes: Attributes) -> GroupNorm:
        return cls(attributes.integer("num_groups", 1, low=1), attributes.number("eps", 1e-5)).without_statistics(
            attributes
        )

    def layout(self, data: Shape) -> tuple[Shape, int, tuple[int, ...]]:
        if len(data) < 3:
            raise self.error("data", f"of shape {data}", "at least 3 axes")
        if data[1] % self.num_groups:
            raise self.error("num_groups", self.num_groups, f"a divisor of the channels of data of shape {data}")
        return norms.in_rows(data, self.num_groups), 1, (2,)


@register
@dataclass(frozen=True)
class InstanceNorm(Affine):
    """``ocl_instance_norm``: data (n, c, ...), gamma and beta (c,); each channel of each example is normed.

    Parameters
    ----------
    eps : float
        Added to the variance; 1e-3 by default.
    """

    op_type: ClassVar[str] = "ocl_instance_norm"

    eps: float

    @classmethod
    def read(cls, attributes: Attributes) -> InstanceNorm:
        return cls(attributes.number("eps", 1e-3))

    def layout(self, data: Shape) -> tuple[Shape, int, tuple[int, ...]]:
        if len(data) < 3:
            raise self.error("data", f"of shape {data}", "at least 3 axes")
        return data, 1, tuple(range(2, len(data)))


@register
@dataclass(frozen=True)
class L2Normalization(Operator):
    """``ocl_l2_normalization``: data divided by the square root of eps plus its sum of squares.

    Parameters
    ----------
    mode : str
        Over what the sums go: ``instance`` (default) all of an example, ``channel`` axis 1, ``spatial`` the axes from
        2 on.
    eps : float
        1e-10 by default.
    """

    op_type: ClassVar[str] = "ocl_l2_normalization"
    backward_reads_outputs: ClassVar[bool] = True

    mode: str
    eps: float

    @classmethod
    def read(cls, attributes: Attributes) -> L2Normalization:
        mode = attributes.choice("mode", ("instance", "channel", "spatial"), "instance")
        return cls(mode, attributes.number("eps", 1e-10))

    def infer(self, shapes: Sequence[Shape | None]) -> Shapes | None:
        data = shapes[0]
        if data is None:
            return None
        least = 3 if self.mode == "spatial" else 2
        if len(data) < least:
            raise self.error("data", f"of shape {data}", f"at least {least} axes for mode {self.mode!r}")
        return [data], [data], []

    def build(self, build: Build, data: Tensor) -> Tensor:
        folded = {"instance": range(1, data.ndim), "channel": range(1, 2), "spatial": range(2, data.ndim)}[self.mode]
        return norms.length_norm(build, data, folded, eps=single(self.eps))
