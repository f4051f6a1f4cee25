"""Normalize, a layer of the SSD fork: pixels or whole examples divided by their length (Liu et al. 2015, ParseNet)."""

from __future__ import annotations

import math
from typing import ClassVar

from clgraft.caffe_layers.layers import fillers
from clgraft.caffe_layers.layers.built import BuiltLayer
from clgraft.core.nn import norms
from clgraft.core.nn.builder import Build, Tensor


class OclNormalize(BuiltLayer):
    """``scale x / sqrt(sum of squares + eps)``, the sum over an example, or without `across_spatial` over its channels.

    Blob scale (C), or of one value if `channel_shared`. The gradient is the formula's; the fork's own leaves the scales
    out of its inner sum and is right only where all channels have the same.
    """

    word: ClassVar[str] = "normalize"
    may_be_in_place: ClassVar[bool] = False

    def configure(self, shapes: list) -> None:
        given = self.parameters.norm_param
        self.expect(len(shapes[0]) >= 2, f"shape {shapes[0]}", "at least 2 axes")
        self.scales = 1 if given.channel_shared else shapes[0][1]
        self.eps = given.eps
        blob = () if given.channel_shared else (self.scales,)
        self.make_blobs((blob, fillers.given_or(given, "scale_filler", 1.0)))

    def prepare(self, shapes: list) -> list:
        shape = shapes[0]
        self.expect(self.scales in (1, shape[1]), f"{shape[1]} channels", self.scales)
        return super().prepare(shapes)

    def build(self, build: Build, bottoms: list, blobs: list) -> Tensor:
        (x,), (scale,) = bottoms, blobs
        view = build.reshape(x, (*x.shape[:2], math.prod(x.shape[2:])))
        axes = (1, 2) if self.parameters.norm_param.across_spatial else (1,)
        along = build.reshape(scale, (1, self.scales, 1))
        return build.reshape(norms.length_norm(build, view, axes, eps=self.eps, scale=along), x.shape)
