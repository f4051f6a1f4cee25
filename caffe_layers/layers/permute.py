"""Permute and ShuffleChannel, layers of forks: axes, or channels, of a bottom in another order."""

from __future__ import annotations

from typing import ClassVar

from clgraft.caffe_layers.layers.built import BuiltLayer
from clgraft.core.nn import shapes as moves
from clgraft.core.nn.builder import Build, Tensor


class OclPermute(BuiltLayer):
    """Axis i of the top is axis ``order[i]`` of the bottom; axes that `order` does not name follow as they were."""

    word: ClassVar[str] = "permute"
    may_be_in_place: ClassVar[bool] = False

    def prepare(self, shapes: list) -> list:
        shape, given = shapes[0], list(self.parameters.permute_param.order)
        good = len(set(given)) == len(given) and all(axis < len(shape) for axis in given)
        self.expect(good, f"order {given}", f"different axes of {len(shape)} dimensions")
        order = (*given, *(axis for axis in range(len(shape)) if axis not in given))
        self.order = order
        return super().prepare(shapes)

    def build(self, build: Build, bottoms: list, blobs: list) -> Tensor:
        return moves.transposed(build, bottoms[0], self.order)


class OclShuffleChannel(BuiltLayer):
    """The first channel of each of `group` groups, then the second ones, and so on (ShuffleNet)."""

    word: ClassVar[str] = "shuffle"
    may_be_in_place: ClassVar[bool] = False

    def prepare(self, shapes: list) -> list:
        shape, self.groups = shapes[0], self.parameters.shuffle_channel_param.group
        self.expect(len(shape) >= 2, f"shape {shape}", "at least 2 axes")
        good = self.groups > 0 and shape[1] % self.groups == 0
        self.expect(good, f"group {self.groups}", f"a divisor of {shape[1]} channels")
        return super().prepare(shapes)

    def build(self, build: Build, bottoms: list, blobs: list) -> Tensor:
        return moves.shuffled_channels(build, bottoms[0], self.groups)
