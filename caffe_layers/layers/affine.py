"""Scale, Bias and Axpy: factors and sums that are broadcast along some axes, learned or from another bottom."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from clgraft.caffe_layers.layers import fillers
from clgraft.caffe_layers.layers.built import BuiltLayer
from clgraft.core.nn import elementwise
from clgraft.core.nn.builder import Build, Tensor


class Affine(BuiltLayer):
    """Base class of both: a vector lies along some axes of x.

    Attributes
    ----------
    has_blob : bool
        Whether the vector is a blob; else it is the second bottom.
    vector : tuple of int
        Shape of the learned vector.
    axis : int
        The first of its axes.
    """

    bottoms: ClassVar[tuple] = (1, 2)

    def vector_shape(self, given: Any, shapes: list) -> tuple:
        """Return the shape of the learned vector, or of the second bottom that replaces it."""
        if len(shapes) == 2:
            return shapes[1]
        self.expect(given.num_axes >= -1, f"num_axes {given.num_axes}", "-1 (to the end) or the number of axes")
        if given.num_axes == 0:
            return ()
        axis = self.canonical_axis(given.axis, len(shapes[0]))
        end = len(shapes[0]) if given.num_axes == -1 else axis + given.num_axes
        self.expect(end <= len(shapes[0]), f"num_axes {given.num_axes} from axis {axis}", f"axes of shape {shapes[0]}")
        return shapes[0][axis:end]

    def read_axis(self, given: Any, shapes: list) -> None:
        """Set the axis from which on the vector lies."""
        x, vector = shapes[0], self.vector if self.has_blob else shapes[1]
        self.axis = self.canonical_axis(given.axis, len(x)) if vector else 0
        found: Sequence[int] = x[self.axis : self.axis + len(vector)]
        self.expect(found == tuple(vector), f"shape {x}", f"{tuple(vector)} from axis {self.axis} on")


class OclScale(Affine):
    """``y = x g``, with `bias_term` ``y = x g + b``; g is bottom 1 or blob 0, b the last blob."""

    word: ClassVar[str] = "scale"

    def configure(self, shapes: list) -> None:
        given = self.parameters.scale_param
        self.has_blob = len(shapes) == 1
        self.vector = self.vector_shape(given, shapes)
        blobs = [(self.vector, fillers.given_or(given, "filler", 1.0))] if self.has_blob else []
        if given.bias_term:
            blobs.append((self.vector, given.bias_filler))
        self.make_blobs(*blobs)

    def prepare(self, shapes: list) -> list:
        self.read_axis(self.parameters.scale_param, shapes)
        return super().prepare(shapes)

    def build(self, build: Build, bottoms: list, blobs: list) -> Tensor:
        x, factor, *term = (*bottoms, *blobs)
        return elementwise.scaled(build, x, factor, term[0] if term else None, self.axis)


class OclBias(Affine):
    """``y = x + b``; b is bottom 1 or blob 0."""

    word: ClassVar[str] = "bias"

    def configure(self, shapes: list) -> None:
        given = self.parameters.bias_param
        self.has_blob = len(shapes) == 1
        self.vector = self.vector_shape(given, shapes)
        if self.has_blob:
            self.make_blobs((self.vector, given.filler))

    def prepare(self, shapes: list) -> list:
        self.read_axis(self.parameters.bias_param, shapes)
        return super().prepare(shapes)

    def build(self, build: Build, bottoms: list, blobs: list) -> Tensor:
        x, term = (*bottoms, *blobs)
        return elementwise.scaled(build, x, None, term, self.axis)


class OclAxpy(BuiltLayer):
    """``y = a x + b`` of bottoms a, x and b, where a (n, c) or (n, c, 1, 1) is broadcast: a layer of SENet's fork."""

    word: ClassVar[str] = "axpy"
    bottoms: ClassVar[tuple] = (3, 3)
    may_be_in_place: ClassVar[bool] = False

    def prepare(self, shapes: list) -> list:
        gates, x, term = shapes
        good = gates[:2] == x[:2] and all(size == 1 for size in gates[2:])
        self.expect(good, f"shape {gates} of bottom 0", f"{(*x[:2], 1, 1)}")
        self.expect(term == x, f"shape {term} of bottom 2", f"{x}, the shape of bottom 1")
        return super().prepare(shapes)

    def build(self, build: Build, bottoms: list, blobs: list) -> Tensor:
        return elementwise.gated_sum(build, *bottoms)
