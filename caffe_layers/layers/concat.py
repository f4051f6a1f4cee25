"""Concat and Slice: bottoms joined along an axis, and a bottom cut along one."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from clgraft import core
from clgraft.caffe_layers.layers.layer import MANY, SKIPPED, OclLayer, buffer


class Joining(OclLayer):
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

    def join(self, shape: tuple, axis: int, extents: list) -> None:
        """Set the problem that joins parts of `extents` along an axis of `shape`, whose other sizes they have."""
        self.problem = core.ConcatProblem(
            "forward", math.prod(shape[:axis]), tuple(extents), math.prod(shape[axis + 1 :])
        )

    def run(self, direction: str, *buffers: core.Buffer) -> None:
        """Join (``forward``: parts, whole) or split (``backward``: whole, parts)."""
        self.context.plan(self.problem.with_direction(direction)).execute(buffers)


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
        extents = [shape[axis] for shape in shapes]
        self.join(first, axis, extents)
        return [(*first[:axis], sum(extents), *first[axis + 1 :])]

    def compute(self, bottom: Any, top: Any) -> None:
        self.run("forward", *(buffer(bottom[i].data) for i in range(self.bottom_count)), buffer(top[0].data))

    def differentiate(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        parts = [buffer(bottom[i].diff) if propagate_down[i] else SKIPPED for i in range(self.bottom_count)]
        self.run("backward", buffer(top[0].diff), *parts)


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
            extents = [shape[axis] // count] * count
        self.join(shape, axis, extents)
        return [(*shape[:axis], extent, *shape[axis + 1 :]) for extent in extents]

    def compute(self, bottom: Any, top: Any) -> None:
        self.run("backward", buffer(bottom[0].data), *(buffer(top[i].data) for i in range(self.top_count)))

    def differentiate(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        if propagate_down[0]:
            self.run("forward", *(buffer(top[i].diff) for i in range(self.top_count)), buffer(bottom[0].diff))
