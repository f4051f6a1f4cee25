"""Transposition and repetition: MXNet's transpose, SwapAxis, depth_to_space, nearest UpSampling, tile and repeat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from clgraft.core.nn import shapes as moves
from clgraft.core.nn.builder import Build, Tensor
from clgraft.mxnet_ops.engine.attributes import Attributes
from clgraft.mxnet_ops.engine.operator import Operator
from clgraft.mxnet_ops.engine.registry import register


@register
@dataclass(frozen=True)
class Transpose(Operator):
    """``ocl_transpose``: axes in another order.

    Parameters
    ----------
    axes : tuple of int
        The order; reversed by default.
    swap : tuple of 2 int
        Or two axes that change places.
    """

    op_type: ClassVar[str] = "ocl_transpose"

    axes: tuple[int, ...]
    swap: tuple[int, ...]

    @classmethod
    def read(cls, attributes: Attributes) -> Transpose:
        axes, swap = attributes.sizes("axes", (), low=-32), attributes.sizes("swap", (), low=-32)
        if len(swap) not in (0, 2) or (axes and swap):
            raise attributes.error("swap", swap, "2 axes, and then no axes")
        return cls(axes, swap)

    def build(self, build: Build, x: Tensor) -> Tensor:
        data, ndim = x.shape, x.ndim
        order = list(range(ndim))
        if self.swap:
            if not all(-ndim <= axis < ndim for axis in self.swap):
                raise self.error("swap", self.swap, f"axes of data of shape {data}")
            a, b = self.swap
            order[a], order[b] = order[b], order[a]
        else:
            given = [axis % ndim if -ndim <= axis < ndim else axis for axis in self.axes] or order[::-1]
            if sorted(given) != order:
                raise self.error("axes", self.axes, f"each axis of data of shape {data} once")
            order = given
        return moves.transposed(build, x, order)


@register
@dataclass(frozen=True)
class DepthToSpace(Operator):
    """``ocl_depth_to_space``: channels of data (N, C, H, W) become the pixels of blocks, or the other way round.

    Parameters
    ----------
    block_size : int
        Rows and columns of a block.
    inverse : bool
        Pixels become channels: MXNet's space_to_depth. False by default.
    """

    op_type: ClassVar[str] = "ocl_depth_to_space"

    block_size: int
    inverse: bool

    @classmethod
    def read(cls, attributes: Attributes) -> DepthToSpace:
        return cls(attributes.integer("block_size", low=1), attributes.flag("inverse", False))

    def build(self, build: Build, data: Tensor) -> Tensor:
        size, shape = self.block_size, data.shape
        if len(shape) != 4:
            raise self.error("data", f"of shape {shape}", "4 axes")
        if self.inverse:
            if shape[2] % size or shape[3] % size:
                raise self.error("data", f"of shape {shape}", f"rows and columns in blocks of {size}")
            return moves.blocks_to_channels(build, data, size)
        if shape[1] % size**2:
            raise self.error("data", f"of shape {shape}", f"a multiple of {size**2} channels, block_size squared")
        return moves.channels_to_blocks(build, data, size)


@register
@dataclass(frozen=True)
class Repeat(Operator):
    """``ocl_repeat``: data repeated along its axes.

    Parameters
    ----------
    times : tuple of int
        How often, per axis; the last axes if there are fewer numbers than axes, new leading axes if more.
    whole : bool
        Repeat whole axes (MXNet's tile) or each element (nearest UpSampling, repeat; the default).
    axis : int
        With it, `times` is one number, of this axis.
    scale : int
        Or the same for every axis after the second (UpSampling).
    """

    op_type: ClassVar[str] = "ocl_repeat"

    times: tuple[int, ...]
    whole: bool
    axis: tuple[int, ...]
    scale: int

    @classmethod
    def read(cls, attributes: Attributes) -> Repeat:
        scale = attributes.integer("scale", 0, low=0)
        times = attributes.sizes("times", () if scale else None, low=1)
        axis = attributes.sizes("axis", (), low=-32)
        if len(axis) > 1 or (axis and len(times) != 1):
            raise attributes.error("axis", axis, "one axis, and times one number")
        return cls(times, attributes.flag("whole", False), axis, scale)

    def build(self, build: Build, x: Tensor) -> Tensor:
        data, ndim = x.shape, x.ndim
        if self.scale:
            times: tuple[int, ...] = (1,) * min(ndim, 2) + (self.scale,) * (ndim - 2)
        elif self.axis:
            if not -ndim <= self.axis[0] < ndim:
                raise self.error("axis", self.axis[0], f"an axis of data of shape {data}")
            times = tuple(self.times[0] if axis == self.axis[0] % ndim else 1 for axis in range(ndim))
        else:
            times = (1,) * (ndim - len(self.times)) + self.times
        wide = build.reshape(x, (1,) * (len(times) - ndim) + data)
        return moves.repeated(build, wide, times, whole=self.whole)
