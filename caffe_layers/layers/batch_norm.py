"""Batch norm in Caffe's form, which normalizes only, and in that of forks, with factor and term."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from clgraft.caffe_layers.layers import fillers
from clgraft.caffe_layers.layers.built import BuiltLayer
from clgraft.caffe_layers.layers.layer import TEST
from clgraft.core.nn import elementwise, norms
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
        self.values = norms.values_of_channel(shape)
        return super().prepare(shapes)

    def build(self, build: Build, bottoms: list, blobs: list, mean: Tensor, var: Tensor) -> Tensor:
        (x,), moving = bottoms, (blobs[0], blobs[1])
        if self.is_global or not self.values:  # without values there are no statistics
            return norms.batch_norm(build, x, None, None, (mean, var), eps=self.eps).y
        normed = norms.batch_norm(build, x, None, None, eps=self.eps)
        shares = norms.shares(keep=self.fraction, add=1.0, count=self.values, single=1.0)
        norms.update_averages(build, x, normed, moving, **shares)
        return normed.y

    def quotients(self) -> Sequence[tuple[np.ndarray, int, int]]:
        return ((self.mean, 0, 2), (self.var, 1, 2)) if self.values and self.is_global else ()

    def counted(self) -> Sequence[tuple[int, float, float]]:
        return ((2, self.fraction, 1.0),) if self.values and not self.is_global else ()


class OclBN(BuiltLayer):
    """Batch norm with factor and term, type BN of two forks.

    PSPNet: blobs slope, bias, mean and variance (C); mean and variance are those of the blobs, so the phase is TEST, or
    `frozen` is set. SegNet: blobs scale and shift (C); of `bn_mode` INFERENCE it is no more than these, of LEARN the
    statistics are those of the batch, in both phases. Four blobs, or without any the names of fields, tell them apart.
    """

    word: ClassVar[str] = "bn"

    def configure(self, shapes: list) -> None:
        given, shape = self.parameters.bn_param, shapes[0]
        self.expect(len(shape) >= 2, f"shape {shape}", "at least 2 axes")
        fields = ("scale_filler", "shift_filler", "bn_mode")
        of_segnet = len(self.blobs) == 2 or (not len(self.blobs) and any(given.HasField(name) for name in fields))
        self.channels, self.averaged = shape[1], not of_segnet
        factor, term = ("scale_filler", "shift_filler") if of_segnet else ("slope_filler", "bias_filler")
        blobs = [(factor, 1.0), (term, 0.0)]
        if self.averaged:
            good = self.phase == TEST or given.frozen
            self.expect(good, "phase TRAIN", "TEST, or frozen: averages of statistics are not trained")
            blobs += [(term, 0.0), (term, 0.0)]
        one = (1, self.channels, 1, 1)
        self.make_blobs(*((one, fillers.given_or(given, name, value)) for name, value in blobs))

    def prepare(self, shapes: list) -> list:
        self.expect(shapes[0][1] == self.channels, f"{shapes[0][1]} channels", self.channels)
        return super().prepare(shapes)

    def build(self, build: Build, bottoms: list, blobs: list) -> Tensor:
        (x,), given = bottoms, self.parameters.bn_param
        vectors = [build.reshape(blob, (self.channels,)) for blob in blobs]
        if self.averaged:
            eps = given.var_eps if given.HasField("var_eps") else given.eps
            return norms.batch_norm(build, x, *vectors[:2], (vectors[2], vectors[3]), eps=eps).y
        if given.bn_mode == given.INFERENCE:
            return elementwise.scaled(build, x, *vectors, 1)
        return norms.batch_norm(build, x, *vectors, eps=given.var_eps).y
