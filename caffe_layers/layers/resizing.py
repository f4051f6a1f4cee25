"""Interp and Upsample, layers of forks: images of another size."""

from __future__ import annotations

from typing import ClassVar

from clgraft.caffe_layers.layers.built import BuiltLayer
from clgraft.core.nn import pooling, resizing
from clgraft.core.nn import shapes as moves
from clgraft.core.nn.builder import Build, Tensor


class OclInterp(BuiltLayer):
    """Bilinear interpolation that keeps the corners (DeepLab, PSPNet), of the image without `pad_beg` and `pad_end`.

    The size is `height` and `width`, or that of bottom 1, or what `shrink_factor` and then `zoom_factor` make of it.
    """

    word: ClassVar[str] = "interp"
    bottoms: ClassVar[tuple] = (1, 2)
    may_be_in_place: ClassVar[bool] = False

    def prepare(self, shapes: list) -> list:
        given, shape = self.parameters.interp_param, shapes[0]
        self.expect(len(shape) == 4, f"shape {shape}", "4 axes")
        good = given.pad_beg <= 0 and given.pad_end <= 0
        self.expect(good, f"pad_beg {given.pad_beg}, pad_end {given.pad_end}", "at most 0: the image is cut")
        inner = tuple(size + given.pad_beg + given.pad_end for size in shape[2:])
        self.expect(min(inner) > 0, f"pad_beg {given.pad_beg}, pad_end {given.pad_end}", f"less than {shape[2:]}")
        factors = given.shrink_factor, given.zoom_factor
        self.expect(min(factors) > 0, f"shrink_factor, zoom_factor {factors}", "numbers of at least 1")
        if given.height or given.width:
            self.size = given.height, given.width
        elif len(shapes) == 2:
            self.size = tuple(shapes[1][2:])
        else:
            self.size = tuple(resizing.zoomed(size, *factors) for size in inner)
        self.expect(len(self.size) == 2 and min(self.size) > 0, f"size {self.size}", "height and width of at least 1")
        return super().prepare(shapes)

    def build(self, build: Build, bottoms: list, blobs: list) -> Tensor:
        given, x = self.parameters.interp_param, bottoms[0]
        begin, end = ((0, 0, pad, pad) for pad in (given.pad_beg, given.pad_end))
        x = moves.padded(build, x, begin, end)
        return resizing.resized(build, x, self.size, "linear", "align_corners")


class OclUpsample(BuiltLayer):
    """Elements at the places of a mask, bottom 1, in planes of zeros (SegNet); or with one bottom each pixel repeated.

    The size is `upsample_h` and `upsample_w`, or `scale` times the bottom's, with `pad_out_h` and `pad_out_w` one less.
    """

    word: ClassVar[str] = "upsample"
    bottoms: ClassVar[tuple] = (1, 2)
    may_be_in_place: ClassVar[bool] = False

    def prepare(self, shapes: list) -> list:
        given, shape = self.parameters.upsample_param, shapes[0]
        self.expect(len(shape) == 4, f"shape {shape}", "4 axes")
        usual = given.scale if given.HasField("scale") else len(shapes)  # SegNet's is 2, YOLO's 1
        self.scale = (given.scale_h, given.scale_w) if given.HasField("scale_h") else (usual, usual)
        self.expect(min(self.scale) > 0, f"scale {self.scale}", "numbers of at least 1")
        whole = tuple(size * times for size, times in zip(shape[2:], self.scale))
        self.size = whole[0] - given.pad_out_h, whole[1] - given.pad_out_w
        if given.HasField("upsample_h") or given.HasField("upsample_w"):
            self.size = given.upsample_h, given.upsample_w
        self.expect(min(self.size) > 0, f"size {self.size}", "numbers of at least 1")
        if len(shapes) == 1:
            self.expect(self.size == whole, f"size {self.size}", f"{whole}, as there is no mask")
        else:
            self.expect(shapes[1] == shape, f"shape {shapes[1]} of bottom 1", f"{shape}, the shape of bottom 0")
        return super().prepare(shapes)

    def build(self, build: Build, bottoms: list, blobs: list) -> Tensor:
        if len(bottoms) == 1:
            return moves.repeated(build, bottoms[0], (1, 1, *self.scale), whole=False)
        return pooling.unpooled(build, bottoms[0], bottoms[1], self.size)
