"""Resizing of images by bilinear interpolation, with the attributes of MXNet's contrib.BilinearResize2D."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from clgraft.core.nn import resizing
from clgraft.core.nn.builder import Build, Tensor
from clgraft.mxnet_ops.engine.attributes import Attributes
from clgraft.mxnet_ops.engine.operator import Operator, Shape, Shapes
from clgraft.mxnet_ops.engine.registry import register

MODES = ("size", "odd_scale", "like", "to_even_down", "to_even_up", "to_odd_down", "to_odd_up")
AXES = ("height", "width")


@register
@dataclass(frozen=True)
class BilinearResize(Operator):
    """``ocl_bilinear_resize``: data (n, c, h, w) resized to another height and width.

    Parameters
    ----------
    mode : str
        ``size``: to `height` and `width`, or by `scale_height` and `scale_width` where `scale_height` is given;
        ``odd_scale``: by the scales, an odd size as (size - 1) scale + 1; ``like``: to the size of a second input;
        ``to_even_down``, ``to_even_up``, ``to_odd_down``, ``to_odd_up``: to the next even or odd size.
    height, width : int
    scale_height, scale_width : float, optional
    align_corners : bool
        Whether the corners' pixels stay at the corners (the default), or pixels are areas.
    """

    op_type: ClassVar[str] = "ocl_bilinear_resize"

    mode: str
    sizes: tuple[int, int]
    scales: tuple[float | None, float | None]
    align_corners: bool

    @property
    def arguments(self) -> tuple[str, ...]:
        return ("data", "like") if self.mode == "like" else ("data",)

    @classmethod
    def read(cls, attributes: Attributes) -> BilinearResize:
        mode = attributes.choice("mode", MODES, "size")
        sizes = tuple(attributes.integer(name, 1, low=1) for name in AXES)
        scales = tuple(attributes.number(f"scale_{name}", 0.0) or None for name in AXES)
        scaled = mode == "odd_scale" or (mode == "size" and scales[0] is not None)
        for name, scale in zip(AXES, scales):
            if scaled and not (scale is not None and math.isfinite(scale) and scale > 0):
                raise attributes.error(f"scale_{name}", scale, "a number above 0")
        return cls(mode, (sizes[0], sizes[1]), (scales[0], scales[1]), attributes.flag("align_corners", True))

    def resized(self, data: Shape, like: Shape | None) -> tuple[int, int]:
        """Return the output's height and width."""
        found = [self._size(axis, data[2 + axis], 0 if like is None else like[2 + axis]) for axis in range(2)]
        for name, size in zip(AXES, found):
            if size < 1:
                raise self.error(name, size, "at least 1")
        return found[0], found[1]

    def _size(self, axis: int, size: int, like: int) -> int:
        if self.mode == "like":
            return like
        if self.mode == "size" and self.scales[0] is None:
            return self.sizes[axis]
        if self.mode in ("size", "odd_scale"):
            is_odd = self.mode == "odd_scale"
            return resizing.scaled_in_single(size, self.scales[axis] or 1.0, odd_apart=is_odd)
        return resizing.next_of_parity(size, odd="odd" in self.mode, up=self.mode.endswith("up"))

    def infer(self, shapes: Sequence[Shape | None]) -> Shapes | None:
        if any(shape is None for shape in shapes):
            return None
        known = [shape for shape in shapes if shape is not None]
        for name, shape in zip(self.arguments, known):
            if len(shape) != 4:
                raise self.error(name, f"of shape {shape}", "4 axes")
        data = known[0]
        return known, [(*data[:2], *self.resized(data, known[1] if len(known) > 1 else None))], []

    def build(self, build: Build, data: Tensor, *like: Tensor) -> Tensor:
        size = self.resized(data.shape, like[0].shape if like else None)
        coordinates = "align_corners" if self.align_corners else "half_pixel_one"
        return resizing.resized(build, data, size, "linear", coordinates)
