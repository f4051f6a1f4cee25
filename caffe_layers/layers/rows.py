"""Layers of places: the largest elements' places, rows by their places, and rows of a table."""

from __future__ import annotations

import math
from typing import ClassVar

from clgraft.caffe_layers.layers.built import BuiltLayer
from clgraft.core.nn import elementwise, ordering
from clgraft.core.nn import shapes as moves
from clgraft.core.nn.builder import Build, Tensor

FEWEST_AXES = 3  # of the top of ArgMax without an axis


class OclArgMax(BuiltLayer):
    """The places of the `top_k` largest elements of each example, or along `axis`, as numbers; the last of equal ones.

    With `out_max_val` and an axis the elements themselves; without an axis places, and then elements, as channels. It
    has no gradient.
    """

    word: ClassVar[str] = "argmax"
    may_be_in_place: ClassVar[bool] = False

    def prepare(self, shapes: list) -> list:
        given, shape = self.parameters.argmax_param, shapes[0]
        if given.HasField("axis"):
            self.axis = self.canonical_axis(given.axis, len(shape))
            self.rows = shape
        else:
            self.axis, self.rows = 1, (shape[0], math.prod(shape[1:]))
        count = self.rows[self.axis]
        self.expect(1 <= given.top_k <= count, f"top_k {given.top_k}", f"1 to {count}")
        return super().prepare(shapes)

    def build(self, build: Build, bottoms: list, blobs: list) -> Tensor:
        (x,), given = bottoms, self.parameters.argmax_param
        values, places = ordering.first_elements(build, build.reshape(x, self.rows), self.axis, given.top_k, last=True)
        found = values if given.out_max_val else ordering.as_numbers(build, places, x.dtype)
        if given.HasField("axis"):
            return build.without_gradient(found)
        tail = (1,) * (max(FEWEST_AXES, x.ndim) - FEWEST_AXES)
        if given.out_max_val:
            numbers = ordering.as_numbers(build, places, x.dtype)
            found = moves.joined(
                build, [build.reshape(one, (x.shape[0], 1, given.top_k)) for one in (numbers, values)], 1
            )
        return build.without_gradient(build.reshape(found, (x.shape[0], 1 + given.out_max_val, given.top_k, *tail)))


class OclBatchReindex(BuiltLayer):
    """The rows of bottom 0 that bottom 1 names by their numbers."""

    word: ClassVar[str] = "batch_reindex"
    bottoms: ClassVar[tuple] = (2, 2)
    may_be_in_place: ClassVar[bool] = False

    def prepare(self, shapes: list) -> list:
        self.expect(len(shapes[1]) == 1, f"shape {shapes[1]} of bottom 1", "1 axis")
        self.expect(len(shapes[0]) > 0 and shapes[0][0] > 0, f"shape {shapes[0]}", "at least 1 row")
        return super().prepare(shapes)

    def build(self, build: Build, bottoms: list, blobs: list) -> Tensor:
        return moves.taken(build, *bottoms, 0)


class OclEmbed(BuiltLayer):
    """Rows of a table by their numbers; blobs w (input_dim, num_output) and, with `bias_term`, b (num_output)."""

    word: ClassVar[str] = "embed"
    may_be_in_place: ClassVar[bool] = False

    def configure(self, shapes: list) -> None:
        given = self.parameters.embed_param
        self.expect(given.num_output > 0, f"num_output {given.num_output}", "at least 1")
        self.expect(given.input_dim > 0, f"input_dim {given.input_dim}", "at least 1")
        blobs: list = [((given.input_dim, given.num_output), given.weight_filler)]
        if given.bias_term:
            blobs.append(((given.num_output,), given.bias_filler))
        self.make_blobs(*blobs)

    def build(self, build: Build, bottoms: list, blobs: list) -> Tensor:
        (x,), (w, *b) = bottoms, blobs
        y = moves.taken(build, w, x, 0)
        return elementwise.scaled(build, y, None, b[0], y.ndim - 1) if b else y
