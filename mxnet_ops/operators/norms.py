"""Norms over some axes: MXNet's LayerNorm, GroupNorm, InstanceNorm and L2Normalization."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import numpy as np

from clgraft.core.operators.pointwise.formulas.norms import LengthNorm, MomentNorm
from clgraft.mxnet_ops.engine.attributes import Attributes
from clgraft.mxnet_ops.engine.operator import IN, IN_GRAD, OUT, OUT_GRAD, STATE, Call, Graft, Operator, Shape, Shapes
from clgraft.mxnet_ops.engine.registration import register

Some = TypeVar("Some", bound="Affine")


def single(value: float) -> float:
    """Return a number as MXNet keeps it."""
    return float(np.float32(value))


class Affine(Operator):
    """What layer, group and instance norm share: data, gamma and beta, which have the size of one axis."""

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

    def graft(self, shapes: tuple[Shape, ...], dtype: str) -> Graft:
        view, axis, folded = self.layout(shapes[0])
        norm = MomentNorm(view, folded, (view[axis],) + (1,) * (len(view) - axis - 1), dtype)
        share, eps = (1 / max(1, math.prod(view[a] for a in folded)),), (single(self.eps),)
        x, gamma, beta, dy = (IN, 0), (IN, 1), (IN, 2), (OUT_GRAD, 0)
        shift, difference, square, first, second = ((STATE, place) for place in range(5))
        normed = (x, shift, difference, square)
        forward = (
            Call(norm.shift(), (x, shift), share),
            Call(norm.moments(), (x, shift, difference, square), share),
            Call(norm.forward(), (*normed, gamma, beta, (OUT, 0)), eps),
        )
        backward = (
            Call(norm.sums(), (*normed, gamma, dy, first, second), (*share, *eps)),
            Call(norm.parameters(), (*normed, dy, (IN_GRAD, 1), (IN_GRAD, 2)), eps),
            Call(norm.backward(), (*normed, gamma, dy, first, second, (IN_GRAD, 0)), eps),
        )
        state = ((norm.kept, dtype, 0.0),) * 5
        return Graft({True: forward, False: forward}, {True: backward, False: backward}, state)


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
        return (data[0], self.num_groups, math.prod(data[1:]) // self.num_groups), 1, (2,)


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

    def graft(self, shapes: tuple[Shape, ...], dtype: str) -> Graft:
        data = shapes[0]
        last = len(data)
        folded = {"instance": range(1, last), "channel": range(1, 2), "spatial": range(2, last)}[self.mode]
        norm = LengthNorm(data, tuple(folded), dtype)
        eps, x, y, dy, squares, sums = (single(self.eps),), (IN, 0), (OUT, 0), (OUT_GRAD, 0), (STATE, 0), (STATE, 1)
        forward = (Call(norm.squares(), (x, squares)), Call(norm.forward(), (x, squares, y), eps))
        backward = (
            Call(norm.sums(), (y, dy, sums)),
            Call(norm.backward(), (y, dy, squares, sums, (IN_GRAD, 0)), eps),
        )
        state = ((norm.kept, dtype, 0.0),) * 2
        return Graft({True: forward, False: forward}, {True: backward, False: backward}, state)
