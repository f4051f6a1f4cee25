"""Concat and Slice: bottoms joined along an axis, and a bottom cut along one."""

from __future__ import annotations

from typing import Any, ClassVar

from clgraft.caffe_layers.layers.built import BuiltLayer
from clgraft.caffe_layers.layers.layer import MANY
from clgraft.core.nn import shapes as moves
from clgraft.core.nn.builder import Build, Tensor


class Joining(BuiltLayer):
    """Base class of both: several parts, one whole, and an axis that has two names."""

    may_be_in_place: ClassVar[bool] = False

    def read_axis(self, given: Any, old: str, ndim: int) -> int:
        """Return the axis: `axis`, or the older field, which takes no negative numbers."""
        if not given.HasField(old):
            return self.canonical_axis(given.axis, ndim)
        self.expect(not given.HasField("axis"), f"axis together with {old}", "one of the two")
        number = getattr(given, old)
        self.expect(number < ndim, f"{old} {number}", f"an axis of {ndim} dimensions")
        return number


class OclConcat(Joining):
    """Bottoms joined along `axis` (or `concat_dim`)."""

    word: ClassVar[str] = "concat"
    bottoms: ClassVar[tuple] = (1, MANY)

    def prepare(self, shapes: list) -> list:
        first = shapes[0]
        axis = self.read_axis(self.parameters.concat_param, "concat_dim", len(first))
        for i, shape in enumerate(shapes):
            good = len(shape) == len(first) and all(a == b for k, (a, b) in enumerate(zip(shape, first)) if k != axis)
            self.expect(good, f"shape {shape} of bottom {i}", f"{first} but for axis {axis}")
        self.axis = axis
        return super().prepare(shapes)

    def build(self, build: Build, bottoms: list, blobs: list) -> Tensor:
        return moves.joined(build, bottoms, self.axis)


class OclSlice(Joining):
    """A bottom cut along `axis` (or `slice_dim`), at each `slice_point` or into equal parts."""

    word: ClassVar[str] = "slice"
    tops: ClassVar[tuple] = (1, MANY)

    def prepare(self, shapes: list) -> list:
        given, shape, count = self.parameters.slice_param, shapes[0], self.top_count
        axis = self.read_axis(given, "slice_dim", len(shape))
        points = list(given.slice_point)
        if points:
            self.expect(len(points) == count - 1, f"{len(points)} values of slice_point", f"{count - 1}, one per cut")
            bounds = [0, *points, shape[axis]]
            rising = all(a < b for a, b in zip(bounds, bounds[1:]))
            self.expect(rising, f"slice_point {points}", f"rising numbers between 0 and {shape[axis]}")
            extents = [b - a for a, b in zip(bounds, bounds[1:])]
        else:
            even = shape[axis] % count == 0
            self.expect(even, f"{count} top blobs", f"a divisor of {shape[axis]}, the size of axis {axis}")
            extents = moves.parts_of(shape[axis], count=count)
        self.axis, self.extents = axis, extents
        return super().prepare(shapes)

    def build(self, build: Build, bottoms: list, blobs: list) -> tuple:
        return moves.split(build, bottoms[0], self.axis, self.extents)
