"""Transposition and repetition: MXNet's transpose, SwapAxis, depth_to_space, nearest UpSampling, tile and repeat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from clgraft.core import PointwiseProblem, Reduction, RepeatProblem, TransposeProblem
from clgraft.mxnet_ops.engine.attributes import Attributes
from clgraft.mxnet_ops.engine.operator import IN, IN_GRAD, OUT, OUT_GRAD, Call, Graft, Operator, Shape, Shapes
from clgraft.mxnet_ops.engine.registration import register


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

    def _problem(self, data: Shape, dtype: str = "float32") -> TransposeProblem:
        ndim = len(data)
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
        return TransposeProblem(data, tuple(order), dtype)

    def infer(self, shapes: Sequence[Shape | None]) -> Shapes | None:
        return None if shapes[0] is None else ([shapes[0]], [self._problem(shapes[0]).out_shape], [])

    def graft(self, shapes: tuple[Shape, ...], dtype: str) -> Graft:
        problem = self._problem(shapes[0], dtype)
        forward = (Call(problem, ((IN, 0), (OUT, 0))),)
        backward = (Call(problem.back(), ((OUT_GRAD, 0), (IN_GRAD, 0))),)
        return Graft({True: forward, False: forward}, {True: backward, False: backward})


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

    def _problem(self, data: Shape, dtype: str = "float32") -> TransposeProblem:
        size = self.block_size
        if len(data) != 4:
            raise self.error("data", f"of shape {data}", "4 axes")
        n, c, h, w = data
        if self.inverse:
            if h % size or w % size:
                raise self.error("data", f"of shape {data}", f"rows and columns in blocks of {size}")
            return TransposeProblem((n, c, h // size, size, w // size, size), (0, 3, 5, 1, 2, 4), dtype)
        if c % size**2:
            raise self.error("data", f"of shape {data}", f"a multiple of {size**2} channels, block_size squared")
        return TransposeProblem((n, size, size, c // size**2, h, w), (0, 3, 4, 1, 5, 2), dtype)

    def infer(self, shapes: Sequence[Shape | None]) -> Shapes | None:
        data = shapes[0]
        if data is None:
            return None
        moved = self._problem(data).out_shape
        n, *_, h, w = data
        size = self.block_size
        if self.inverse:
            return [data], [(n, moved[1] * moved[2] * moved[3], h // size, w // size)], []
        return [data], [(n, moved[1], h * size, w * size)], []

    def graft(self, shapes: tuple[Shape, ...], dtype: str) -> Graft:
        problem = self._problem(shapes[0], dtype)
        forward = (Call(problem, ((IN, 0), (OUT, 0))),)
        backward = (Call(problem.back(), ((OUT_GRAD, 0), (IN_GRAD, 0))),)
        return Graft({True: forward, False: forward}, {True: backward, False: backward})


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

    def _problem(self, data: Shape, dtype: str = "float32") -> RepeatProblem:
        ndim = len(data)
        if self.scale:
            times: tuple[int, ...] = (1,) * min(ndim, 2) + (self.scale,) * (ndim - 2)
        elif self.axis:
            if not -ndim <= self.axis[0] < ndim:
                raise self.error("axis", self.axis[0], f"an axis of data of shape {data}")
            times = tuple(self.times[0] if axis == self.axis[0] % ndim else 1 for axis in range(ndim))
        else:
            times = (1,) * (ndim - len(self.times)) + self.times
        return RepeatProblem((1,) * (len(times) - ndim) + data, times, self.whole, dtype)

    def infer(self, shapes: Sequence[Shape | None]) -> Shapes | None:
        return None if shapes[0] is None else ([shapes[0]], [self._problem(shapes[0]).out_shape], [])

    def graft(self, shapes: tuple[Shape, ...], dtype: str) -> Graft:
        problem = self._problem(shapes[0], dtype)
        wide, narrow = problem.split_shape()
        gradient = PointwiseProblem((wide,), "y0 = x0;", (Reduction("sum", shape=narrow),), dtype=dtype)
        forward = (Call(problem, ((IN, 0), (OUT, 0))),)
        backward = (Call(gradient, ((OUT_GRAD, 0), (IN_GRAD, 0))),)
        return Graft({True: forward, False: forward}, {True: backward, False: backward})
