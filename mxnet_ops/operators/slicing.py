"""Boxes out of tensors and into larger ones: MXNet's slice, slice_axis, Crop and Pad."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import ClassVar

from clgraft.core.nn import shapes as moves
from clgraft.core.nn.builder import Build, Tensor
from clgraft.mxnet_ops.engine.attributes import Attributes
from clgraft.mxnet_ops.engine.operator import Operator
from clgraft.mxnet_ops.engine.registry import register

Bounds = tuple["int | None", ...]
PLANE = 2  # axes that a crop cuts, the last ones of four
NO_OFFSET = (0, 0)


def _bounds(attributes: Attributes, name: str, default: str | None = None) -> Bounds:
    text = attributes.text(name, default)
    expected = "a tuple of whole numbers or None"
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        raise attributes.error(name, repr(text), expected) from None
    values = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    if not all(v is None or (isinstance(v, int) and not isinstance(v, bool)) for v in values):
        raise attributes.error(name, text, expected)
    return values


@register
@dataclass(frozen=True)
class Slice(Operator):
    """``ocl_slice``: the part of data from `begin` to before `end`.

    Parameters
    ----------
    begin, end : tuple of int or None
        Of the leading axes; None is the axis's own bound, negative numbers count from its end.
    axis : int
        With it, `begin` and `end` are one number, of this axis alone (MXNet's slice_axis).
    step : tuple of int or None
        From element to element; None is 1, and negative steps go backwards from `begin`.
    """

    op_type: ClassVar[str] = "ocl_slice"

    begin: Bounds
    end: Bounds
    axis: int | None
    step: Bounds = ()

    @classmethod
    def read(cls, attributes: Attributes) -> Slice:
        begin, end = _bounds(attributes, "begin"), _bounds(attributes, "end", "None")
        text = attributes.text("axis", "")
        axis = _bounds(Attributes(cls.op_type, {"axis": text}), "axis")[0] if text else None
        step = _bounds(attributes, "step", "()")
        if 0 in step or (axis is not None and step) or len(step) not in (0, len(begin)):
            raise attributes.error("step", step, f"{len(begin)} numbers other than 0 or None, and no axis")
        if axis is not None and (len(begin) != 1 or len(end) != 1):
            raise attributes.error("begin", begin, "one number for begin and for end, with an axis")
        if axis is None and len(begin) != len(end):
            raise attributes.error("end", end, f"{len(begin)} numbers, as many as begin")
        return cls(begin, end, axis, step)

    def build(self, build: Build, x: Tensor) -> Tensor:
        data, ndim = x.shape, x.ndim
        if self.axis is not None and not -ndim <= self.axis < ndim:
            raise self.error("axis", self.axis, f"an axis of data of shape {data}")
        if len(self.begin) > ndim:
            raise self.error("begin", self.begin, f"at most {ndim} numbers, for data of shape {data}")
        first, size, strides = [0] * ndim, list(data), [1] * ndim
        start = 0 if self.axis is None else self.axis % ndim
        given = zip(self.begin, self.end, self.step or (None,) * len(self.begin))
        for axis, (low, high, step) in enumerate(given, start):
            begin, count = moves.section(data[axis], low, high, step)
            outside = low is not None and not -data[axis] <= low <= data[axis]
            if outside or (not count and data[axis]) or (self.axis is not None and (high or 0) > data[axis]):
                raise self.error("begin and end", f"{low} and {high}", f"a range of axis {axis} of size {data[axis]}")
            first[axis], size[axis], strides[axis] = begin, count, step or 1
        return moves.cut(build, x, size, first, strides)


@register
@dataclass(frozen=True)
class Crop(Operator):
    """``ocl_crop``: rows and columns of data (N, C, H, W), as many as `crop_like` has or as `h_w` says.

    Parameters
    ----------
    num_args : int
        2 with crop_like, (N, C, h, w), whose gradient is 0; 1 without.
    offset : tuple of 2 int
        The first row and column.
    h_w : tuple of 2 int
        The size without crop_like.
    center_crop : bool
        Take the middle instead of `offset`.
    """

    op_type: ClassVar[str] = "ocl_crop"

    num_args: int
    offset: tuple[int, ...]
    h_w: tuple[int, ...]
    center_crop: bool

    @property
    def arguments(self) -> tuple[str, ...]:
        return ("data", "crop_like")[: self.num_args]

    @classmethod
    def read(cls, attributes: Attributes) -> Crop:
        count = attributes.integer("num_args", low=1)
        if count > PLANE:
            raise attributes.error("num_args", count, "1 or 2")
        given = {name: attributes.sizes(name, NO_OFFSET) for name in ("offset", "h_w")}
        for name, value in given.items():
            if len(value) != PLANE:
                raise attributes.error(name, value, "2 numbers")
        return cls(count, given["offset"], given["h_w"], attributes.flag("center_crop", False))

    def build(self, build: Build, data: Tensor, *like: Tensor) -> Tensor:
        for name, value in zip(self.arguments, (data, *like)):
            if value.ndim != 4:
                raise self.error(name, f"of shape {value.shape}", "4 axes")
        size = like[0].shape[2:] if like else self.h_w
        begin = moves.middle(data.shape[2:], size) if self.center_crop else self.offset
        return moves.cut(build, data, (*data.shape[:2], *size), (0, 0, *begin))


@register
@dataclass(frozen=True)
class Pad(Operator):
    """``ocl_pad``: data with a border.

    Parameters
    ----------
    mode : str
        ``constant``, ``edge`` (the border's element) or ``reflect`` (the mirror image without it).
    pad_width : tuple of int
        Before and after each axis: (before 0, after 0, before 1, ...); for ``reflect`` less than the axis.
    constant_value : float
        0 by default.
    """

    op_type: ClassVar[str] = "ocl_pad"

    mode: str
    pad_width: tuple[int, ...]
    constant_value: float

    @classmethod
    def read(cls, attributes: Attributes) -> Pad:
        mode = attributes.choice("mode", ("constant", "edge", "reflect"))
        return cls(mode, attributes.sizes("pad_width"), attributes.number("constant_value", 0.0))

    def build(self, build: Build, data: Tensor) -> Tensor:
        if len(self.pad_width) != 2 * data.ndim:
            raise self.error("pad_width", self.pad_width, f"{2 * data.ndim} numbers, two per axis of {data.shape}")
        begin, end = self.pad_width[::2], self.pad_width[1::2]
        return moves.bordered(build, data, self.mode, begin, end, self.constant_value)
