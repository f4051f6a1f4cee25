"""Flatten and Reshape: the elements of a bottom under another shape.

Caffe's own layers share their bottom's memory, so they only have a place here inside of regions, where a graph makes
the copy a view.
"""

from __future__ import annotations

import math
from typing import ClassVar

from clgraft.caffe_layers.layers.built import BuiltLayer
from clgraft.core.nn import shapes as moves
from clgraft.core.nn.builder import Build, Tensor


class _OclView(BuiltLayer):
    """A layer whose top has the elements of its bottom, in their order."""

    may_be_in_place: ClassVar[bool] = False

    def build(self, build: Build, bottoms: list, blobs: list) -> Tensor:
        (x,) = bottoms
        return moves.copied(build, x, self.shaped(x.shape))

    def shaped(self, shape: tuple) -> tuple:
        """Return the top's shape."""
        raise NotImplementedError


class OclFlatten(_OclView):
    """The axes from `axis` to `end_axis`, both included, as one."""

    word: ClassVar[str] = "flatten"

    def shaped(self, shape: tuple) -> tuple:
        given = self.parameters.flatten_param
        begin = self.canonical_axis(given.axis, len(shape))
        end = self.canonical_axis(given.end_axis, len(shape), "end_axis")
        self.expect(begin <= end, f"end_axis {given.end_axis}", f"none in front of axis {given.axis}")
        return moves.flattened(shape, begin, end)


class OclReshape(_OclView):
    """`num_axes` axes from `axis` on as those of `shape`: 0 is the bottom's size there, one -1 what is left."""

    word: ClassVar[str] = "reshape"

    def shaped(self, shape: tuple) -> tuple:
        given, ndim = self.parameters.reshape_param, len(shape)
        dims, first, count = list(given.shape.dim), given.axis, given.num_axes
        begin = first if first >= 0 else ndim + 1 + first
        self.expect(0 <= begin <= ndim, f"axis {first}", f"an axis of {ndim} dimensions, or the end")
        self.expect(count >= -1, f"num_axes {count}", "at least -1")
        end = ndim if count == -1 else begin + count
        self.expect(end <= ndim, f"num_axes {count} from axis {first}", f"axes of {ndim} dimensions")
        self.expect(dims.count(-1) <= 1 and min(dims, default=0) >= -1, f"shape {dims}", "sizes, 0, or one -1")
        missing = [i for i, dim in enumerate(dims) if dim == 0 and begin + i >= ndim]
        self.expect(not missing, f"0 at {missing} of shape {dims}", f"one for an axis of {ndim} dimensions")
        sizes = [shape[begin + i] if dim == 0 else dim for i, dim in enumerate(dims)]
        replaced = math.prod(shape[begin:end])
        if -1 in sizes:
            known = math.prod(size for size in sizes if size != -1)
            good = known > 0 and replaced % known == 0
            self.expect(good, f"shape {dims} for {replaced} elements", "sizes whose product divides them")
            sizes = list(moves.filled_up(sizes, replaced))
        self.expect(math.prod(sizes) == replaced, f"shape {dims}", f"{replaced} elements, as the bottom has there")
        return (*shape[:begin], *sizes, *shape[end:])
