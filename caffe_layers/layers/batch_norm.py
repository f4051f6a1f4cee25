"""Batch norm in Caffe's form: it normalizes only; factor and term are those of a Scale layer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from clgraft import core
from clgraft.caffe_layers.layers import fillers
from clgraft.caffe_layers.layers.layer import SKIPPED, TEST, OclLayer, buffer


class OclBatchNorm(OclLayer):
    """Batch norm; blobs mean (C), var (C) and factor (1): sums that decay, and the sum of their weights.

    With batch statistics: ``y = (x - mu) / sqrt(var + eps)``, then ``factor = f factor + 1``, ``mean = f mean + mu``
    and ``var = f var + m / (m - 1) var_biased``, m values per channel. With global statistics (`use_global_stats`;
    by default in the TEST phase) the blobs divided by factor take the place of mu and var.

    It needs ``param { lr_mult: 0 decay_mult: 0 }`` three times: the solver must not change the statistics.
    """

    word: ClassVar[str] = "batchnorm"
    given: ClassVar[tuple] = ("mean", "var")
    constants: ClassVar[tuple] = ("ones", "zeros")
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
        self.ones = np.ones(self.channels, self.real)
        self.zeros = np.zeros(self.channels, self.real)
        self.mean = np.zeros(self.channels, self.real)
        self.var = np.ones(self.channels, self.real)
        self.gamma, self.beta = buffer(self.ones), buffer(self.zeros)
        self.statistics = buffer(self.mean), buffer(self.var)

    def prepare(self, shapes: list) -> list:
        shape = shapes[0]
        channels = 1 if len(shape) == 1 else shape[1]
        self.expect(channels == self.channels, f"{channels} channels", self.channels)
        pixels = math.prod(shape[2:])
        self.values = shape[0] * pixels
        self.input: Any = None

        def plan(direction: str) -> core.Plan:
            return self.context.plan(core.BatchNormProblem(direction, batch=shape[0], channels=channels, pixels=pixels))

        kind = "inference" if self.is_global else "training"
        self.forward_plan, self.backward_plan = plan(f"forward_{kind}"), plan(f"backward_{kind}")
        self.update_plan = plan("update_statistics")
        return shapes

    def quotients(self) -> Sequence[tuple[np.ndarray, int, int]]:
        return ((self.mean, 0, 2), (self.var, 1, 2)) if self.values and self.is_global else ()

    def compute(self, bottom: Any, top: Any) -> None:
        if not self.values:
            return  # no values, no statistics
        if self.is_global:
            x = buffer(bottom[0].data)
            self.forward_plan.execute((x, self.gamma, self.beta, *self.statistics, buffer(top[0].data)), (self.eps,))
            return
        if self.in_place:  # backward needs what the layer overwrites
            if self.input is None:
                self.input = self.array(self.shapes[0])
            self.copy(self.input, bottom[0].data)
        x = buffer(self.input if self.in_place else bottom[0].data)
        self.forward_plan.execute((x, self.gamma, self.beta, buffer(top[0].data), *self.statistics), (self.eps,))
        running = buffer(self.blobs[0].data), buffer(self.blobs[1].data)
        correction = self.values / (self.values - 1) if self.values > 1 else 1.0
        self.update_plan.execute((*self.statistics, *running), (self.fraction, 1.0, correction))

    def counted(self) -> Sequence[tuple[int, float, float]]:
        return ((2, self.fraction, 1.0),) if self.values and not self.is_global else ()

    def differentiate(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        if not propagate_down[0]:
            return
        dy = buffer(top[0].diff)
        x = (
            dy if self.is_global else buffer(self.input if self.in_place else bottom[0].data)
        )  # with global statistics x is not read
        dx = buffer(bottom[0].diff)
        self.backward_plan.execute((x, dy, self.gamma, *self.statistics, dx, SKIPPED, SKIPPED), (self.eps,))
