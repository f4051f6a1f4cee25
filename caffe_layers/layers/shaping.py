"""Crop, Tile, Reduction and Parameter: a part of a bottom, its repetition, its sums, and a blob alone."""

from __future__ import annotations

from typing import ClassVar

from clgraft.caffe_layers.layers.built import BuiltLayer
from clgraft.caffe_layers.prototxt import schema
from clgraft.core.nn import reductions
from clgraft.core.nn import shapes as moves
from clgraft.core.nn.builder import Build, Tensor


class OclCrop(BuiltLayer):
    """From `axis` on as much of bottom 0 as bottom 1 has, from `offset` on (0 by default, one for all axes or each)."""

    word: ClassVar[str] = "crop"
    bottoms: ClassVar[tuple] = (2, 2)
    may_be_in_place: ClassVar[bool] = False

    def prepare(self, shapes: list) -> list:
        given, (shape, like) = self.parameters.crop_param, shapes
        axis = self.canonical_axis(given.axis, len(shape))
        self.expect(len(like) == len(shape), f"shape {like} of bottom 1", f"{len(shape)} axes, as bottom 0")
        offsets, cut = list(given.offset), len(shape) - axis
        self.expect(len(offsets) in (0, 1, cut), f"{len(offsets)} values of offset", f"none, 1 or {cut}")
        begin = (0,) * axis + tuple(offsets if len(offsets) == cut else (offsets or [0]) * cut)
        wanted = (*shape[:axis], *like[axis:])
        inside = all(b + w <= size for b, w, size in zip(begin, wanted, shape))
        self.expect(inside, f"offset {offsets} and shape {like} of bottom 1", f"a part of bottom 0, of shape {shape}")
        self.axis, self.first = axis, begin
        return super().prepare(shapes)

    def build(self, build: Build, bottoms: list, blobs: list) -> Tensor:
        x, like = bottoms
        return moves.cut(build, x, (*x.shape[: self.axis], *like.shape[self.axis :]), self.first)


class OclTile(BuiltLayer):
    """The bottom `tiles` times, one after the other along `axis`."""

    word: ClassVar[str] = "tile"
    may_be_in_place: ClassVar[bool] = False

    def prepare(self, shapes: list) -> list:
        given, shape = self.parameters.tile_param, shapes[0]
        self.expect(given.HasField("tiles") and given.tiles > 0, f"tiles {given.tiles}", "a number of at least 1")
        self.axis = self.canonical_axis(given.axis, len(shape))
        return super().prepare(shapes)

    def build(self, build: Build, bottoms: list, blobs: list) -> Tensor:
        (x,), axis, times = bottoms, self.axis, self.parameters.tile_param.tiles
        rows = build.reshape(x, moves.matrix_shape(x.shape, axis))
        y = moves.repeated(build, rows, (1, times), whole=True)
        return build.reshape(y, (*x.shape[:axis], x.shape[axis] * times, *x.shape[axis + 1 :]))


class OclReduction(BuiltLayer):
    """`coeff` times the SUM, ASUM (of absolute values), SUMSQ or MEAN over the axes from `axis` on."""

    word: ClassVar[str] = "reduction"
    may_be_in_place: ClassVar[bool] = False

    def build(self, build: Build, bottoms: list, blobs: list) -> Tensor:
        (x,), given = bottoms, self.parameters.reduction_param
        axis = self.canonical_axis(given.axis, x.ndim)
        rows = build.reshape(x, moves.matrix_shape(x.shape, axis))
        value = {given.ASUM: "absolute", given.SUMSQ: "squares", given.MEAN: "mean"}.get(given.operation, "sum")
        return build.reshape(reductions.summed(build, rows, (1,), value, factor=given.coeff), x.shape[:axis])


class OclParameter(BuiltLayer):
    """A learned blob of `shape` as a top; zeros at first."""

    word: ClassVar[str] = "parameter"
    bottoms: ClassVar[tuple] = (0, 0)
    may_be_in_place: ClassVar[bool] = False

    def configure(self, shapes: list) -> None:
        self.make_blobs((tuple(self.parameters.parameter_param.shape.dim), schema.message_class("FillerParameter")()))

    def build(self, build: Build, bottoms: list, blobs: list) -> Tensor:
        return moves.copied(build, blobs[0], blobs[0].shape)
