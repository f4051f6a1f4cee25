"""Batch norm in Caffe's form: it normalizes only; factor and term are those of a Scale layer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from clgraft.caffe_layers.layers import fillers
from clgraft.caffe_layers.layers.built import BuiltLayer
from clgraft.caffe_layers.layers.layer import TEST
from clgraft.core.nn import norms
from clgraft.core.nn.builder import Build, Tensor


class OclBatchNorm(BuiltLayer):
    """Batch norm; blobs mean (C), var (C) and factor (1): sums that decay, and the sum of their weights.

    With batch statistics: ``y = (x - mu) / sqrt(var + eps)``, then ``factor = f factor + 1``, ``mean = f mean + mu``
    and ``var = f var + m / (m - 1) var_biased``, m values per channel. With global statistics (`use_global_stats`;
    by default in the TEST phase) the blobs divided by factor take the place of mu and var.

    It needs ``param { lr_mult: 0 decay_mult: 0 }`` three times: the solver must not change the statistics.
    """

    word: ClassVar[str] = "batchnorm"
    given: ClassVar[tuple] = ("mean", "var")
    changed: ClassVar[tuple] = (0, 1)
    learned: ClassVar[bool] = False

    def configure(self, shapes: list) -> None:
        given = self.parameters.batch_norm_param
        self.channels = 1 if len(shapes[0]) == 1 else shapes[0][1]
        self.fraction = given.moving_average_fraction
        self.eps = given.eps
        self.is_global = given.use_global_stats if given.HasField("use_global_stats") else self.phase == TEST
        zero = fillers.given_or(self.parameters.scale_param, "filler", 0.0)
        self.make_blobs(((self.channels,), zero), ((self.channels,), zero), ((1,), zero))
        # These arrays live as long as the layer, so buffers may keep their addresses.
        self.mean = np.zeros(self.channels, self.real)
        self.var = np.ones(self.channels, self.real)

    def prepare(self, shapes: list) -> list:
        shape = shapes[0]
        channels = 1 if len(shape) == 1 else shape[1]
        self.expect(channels == self.channels, f"{channels} channels", self.channels)
        self.values = shape[0] * math.prod(shape[2:])
        return super().prepare(shapes)

    def build(self, build: Build, bottoms: list, blobs: list, mean: Tensor, var: Tensor) -> Tensor:
        (x,), moving = bottoms, (blobs[0], blobs[1])
        if self.is_global or not self.values:  # without values there are no statistics
            return norms.batch_norm(build, x, None, None, (mean, var), eps=self.eps).y
        normed = norms.batch_norm(build, x, None, None, eps=self.eps)
        correction = norms.unbiased(self.values, single=1.0)
        norms.update_averages(build, x, normed, moving, keep=self.fraction, add=(1.0, correction))
        return normed.y

    def quotients(self) -> Sequence[tuple[np.ndarray, int, int]]:
        return ((self.mean, 0, 2), (self.var, 1, 2)) if self.values and self.is_global else ()

    def counted(self) -> Sequence[tuple[int, float, float]]:
        return ((2, self.fraction, 1.0),) if self.values and not self.is_global else ()
