"""Normalisation layers: local response normalisation across and within channels, and mean and variance."""

from __future__ import annotations

from typing import ClassVar

from clgraft.caffe_layers.layers.built import BuiltLayer
from clgraft.core.nn import norms
from clgraft.core.nn.builder import Build, Tensor
from clgraft.core.nn.shapes import matrix_shape

AXES = 4  # a bottom has batch, channels, height and width
ACROSS_CHANNELS = 0


class OclLRN(BuiltLayer):
    """``x (k + alpha / n * sum of squares)^-beta`` over n = `local_size` channels.

    With WITHIN_CHANNEL ``x (1 + alpha * mean of squares)^-beta`` over windows of n by n pixels; `k` is not used there.
    `engine` changes nothing.
    """

    word: ClassVar[str] = "lrn"
    may_be_in_place: ClassVar[bool] = False

    def configure(self, shapes: list) -> None:
        given = self.parameters.lrn_param
        self.across = given.norm_region == ACROSS_CHANNELS
        self.expect(given.local_size % 2 == 1, f"local_size {given.local_size}", "an odd number")
        self.size, self.alpha, self.beta, self.k = given.local_size, given.alpha, given.beta, given.k

    def prepare(self, shapes: list) -> list:
        shape = shapes[0]
        self.expect(len(shape) == AXES, f"shape {shape}", f"{AXES} axes")
        return super().prepare(shapes)

    def build(self, build: Build, bottoms: list, blobs: list) -> Tensor:
        (x,), given = bottoms, {"size": self.size, "alpha": self.alpha, "beta": self.beta}
        if self.across:
            return norms.local_response_norm(build, x, k=self.k, **given)
        return norms.window_norm(build, x, **given)


class OclMVN(BuiltLayer):
    """Each channel, or with `across_channels` each example, less its mean and divided by its deviation plus `eps`."""

    word: ClassVar[str] = "mvn"
    may_be_in_place: ClassVar[bool] = False

    def prepare(self, shapes: list) -> list:
        kept = 1 if self.parameters.mvn_param.across_channels else 2
        self.expect(len(shapes[0]) >= kept, f"shape {shapes[0]}", f"at least {kept} axes")
        return super().prepare(shapes)

    def build(self, build: Build, bottoms: list, blobs: list) -> Tensor:
        (x,), given = bottoms, self.parameters.mvn_param
        kept = 1 if given.across_channels else 2
        rows = build.reshape(x, matrix_shape(x.shape, kept))
        y = norms.centred_norm(build, rows, (1,), eps=given.eps if given.normalize_variance else None)
        return build.reshape(y, (*x.shape, *(1,) * (AXES - x.ndim)))  # Caffe's top has four axes
