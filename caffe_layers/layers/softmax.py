"""Softmax layers: alone, and followed by the loss."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np

from clgraft import core
from clgraft.caffe_layers.layers.layer import OclLayer, buffer
from clgraft.caffe_layers.layers.loss import Loss
from clgraft.core.errors import ProblemError

LOWEST_PROBABILITY = float(np.finfo(np.float32).tiny)  # the loss takes its logarithm, as in Caffe


def sizes_around(shape: tuple, axis: int) -> tuple:
    """Return the products of the sizes before, of and after an axis."""
    return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])


class OclSoftmax(OclLayer):
    """``exp(x) / sum(exp(x))`` along `axis`, 1 by default. `engine` changes nothing."""

    word: ClassVar[str] = "softmax"

    def prepare(self, shapes: list) -> list:
        axis = self.canonical_axis(self.parameters.softmax_param.axis, len(shapes[0]))
        self.problem = core.SoftmaxProblem("forward", *sizes_around(shapes[0], axis))
        return shapes

    def compute(self, bottom: Any, top: Any) -> None:
        plan = self.context.plan(self.problem)
        plan.execute((buffer(bottom[0].data), buffer(top[0].data)), (1.0,))

    def differentiate(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        if not propagate_down[0]:
            return
        plan = self.context.plan(self.problem.with_direction("backward"))
        plan.execute((buffer(top[0].data), buffer(top[0].diff), buffer(bottom[0].diff)), (1.0,))


class OclSoftmaxWithLoss(Loss):
    """Softmax and the mean of ``-log(probability of the label)``; a second top gets the probabilities.

    A label that names no class is an error; Caffe's own layer reads beyond the array.
    """

    word: ClassVar[str] = "softmax_loss"
    results: ClassVar[tuple] = ("loss", "counts")
    tops: ClassVar[tuple] = (1, 2)

    def configure(self, shapes: list) -> None:
        self.read_loss(default="VALID")

    def prepare(self, shapes: list) -> list:
        shape = shapes[0]
        axis = self.canonical_axis(self.parameters.softmax_param.axis, len(shape))
        sizes = sizes_around(shape, axis)
        labels, places = math.prod(shapes[1]), sizes[0] * sizes[2]
        self.expect(labels == places, f"{labels} labels of shape {shapes[1]}", f"{places}, one for every prediction")
        self.outer, self.inner = sizes[0], sizes[2]
        self.problem = core.SoftmaxProblem("forward", *sizes)
        self.entropy = core.CrossEntropyProblem("forward", *sizes, ignoring=self.ignores)
        self.ignored = (float(self.ignored_label),) if self.ignores else ()
        # the result of the softmax; with a second top it is stored there, as in Caffe
        self.kept = self.array(shape if self.top_count == 1 else (0,))
        self.loss, self.counts = np.zeros(1, self.real), np.zeros(2, np.int32)
        return [(), shape][: self.top_count]

    def probabilities(self, top: Any) -> np.ndarray:
        """Return the array of the softmax's result."""
        return self.kept if self.top_count == 1 else top[1].data

    def compute(self, bottom: Any, top: Any) -> None:
        y, label = buffer(self.probabilities(top)), buffer(bottom[1].data)
        self.context.plan(self.problem).execute((buffer(bottom[0].data), y), (1.0,))
        counts = core.Buffer(self.counts.ctypes.data, self.counts.nbytes, "int32")
        plan = self.context.plan(self.entropy)
        plan.execute((y, label, buffer(self.loss), counts), (LOWEST_PROBABILITY, *self.ignored))

    def end(self, bottom: Any, top: Any) -> None:
        if self.counts[1]:
            given, classes = bottom[1].data, self.problem.channels
            raise ProblemError(
                f"[{self.word}] got {self.counts[1]} labels outside of the classes (labels from {given.min()} to "
                f"{given.max()}), expected 0 to {classes - 1}" + (f" or {self.ignored_label}" if self.ignores else "")
            )
        self.normalizer = self.normalize(int(self.counts[0]))
        top[0].data[...] = self.loss[0] / self.normalizer

    def differentiate(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        self.leave_labels(propagate_down, bottom)
        if not propagate_down[0]:
            return
        plan = self.context.plan(self.entropy.with_direction("backward"))
        y, label = buffer(self.probabilities(top)), buffer(bottom[1].data)
        scale = self.late(lambda top: self.weight(top) / self.normalizer, top)
        plan.execute((y, label, buffer(bottom[0].diff)), (scale, 0.0, *self.ignored))
