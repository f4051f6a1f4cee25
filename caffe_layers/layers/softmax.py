"""Softmax layers: alone, and followed by the loss."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np

from clgraft.caffe_layers.layers.built import BuiltLayer
from clgraft.caffe_layers.layers.loss import Loss
from clgraft.core.errors import ProblemError
from clgraft.core.nn import losses, softmax
from clgraft.core.nn.builder import Build, Tensor

LOWEST_PROBABILITY = float(np.finfo(np.float32).tiny)  # the loss takes its logarithm, as in Caffe


class OclSoftmax(BuiltLayer):
    """``exp(x) / sum(exp(x))`` along `axis`, 1 by default. `engine` changes nothing."""

    word: ClassVar[str] = "softmax"

    def build(self, build: Build, bottoms: list, blobs: list) -> Tensor:
        (x,) = bottoms
        axis = self.canonical_axis(self.parameters.softmax_param.axis, x.ndim)
        return softmax.softmax(build, x, softmax.around(x.shape, axis))


class ClassLoss(Loss):
    """Base class of losses of classes by softmax, whose second top gets the probabilities, as in Caffe."""

    tops: ClassVar[tuple] = (1, 2)

    def configure(self, shapes: list) -> None:
        self.read_loss(default="VALID")

    def read_sizes(self, shapes: list, axis: int) -> None:
        """Take the sizes around the axis of the classes."""
        self.axis = self.canonical_axis(axis, len(shapes[0]))
        self.outer, self.classes, self.inner = softmax.around(shapes[0], self.axis)
        labels, places = math.prod(shapes[1]), self.outer * self.inner
        self.expect(labels == places, f"{labels} labels of shape {shapes[1]}", f"{places}, one for every prediction")

    def summed(self, build: Build, bottoms: list, **more: Any) -> tuple:
        """Return the sum of the losses, counts of labels, and the probabilities.

        Its further arguments are `ignored`, `scale` and `by_count` of functions of `clgraft.core.nn`.
        """
        raise NotImplementedError

    def build(self, build: Build, bottoms: list, blobs: list) -> tuple:
        found = self._summed(build, bottoms, self.scalar(build, "scale"))
        return found if self.top_count > 1 else found[:2]

    def in_net(self, build: Build, bottoms: list, weight: float) -> tuple[Tensor, ...]:
        by_count = self.counts_labels()
        number = 1.0 if by_count else self.normalize(self.outer * self.inner)
        total, counts, y = self._summed(build, bottoms, losses.share(weight, number), by_count)
        loss = losses.divided(build, total, counts) if by_count else losses.shared(build, total, number)
        return (loss, y)[: self.top_count]

    def _summed(self, build: Build, bottoms: list, scale: Any, by_count: bool = False) -> tuple:
        ignored = float(self.ignored_label) if self.ignores else None
        return self.summed(build, bottoms, ignored=ignored, scale=scale, by_count=by_count)


class OclSoftmaxWithLoss(ClassLoss):
    """Softmax and the mean of ``-log(probability of the label)``; a second top gets the probabilities.

    A label that names no class is an error; Caffe's own layer reads beyond the array.
    """

    word: ClassVar[str] = "softmax_loss"
    results: ClassVar[tuple] = ("loss", "counts")

    def prepare(self, shapes: list) -> list:
        self.read_sizes(shapes, self.parameters.softmax_param.axis)
        self.loss, self.counts = np.zeros(1, self.real), np.zeros(2, np.int32)
        return [(), *super().prepare(shapes)]

    def summed(self, build: Build, bottoms: list, **more: Any) -> tuple:
        x, label = bottoms
        sizes = softmax.around(x.shape, self.axis)
        return losses.summed_cross_entropy(build, x, label, sizes, lowest=LOWEST_PROBABILITY, **more)

    def end(self, bottom: Any, top: Any) -> None:
        if self.counts[1]:
            given, classes = bottom[1].data, self.classes
            raise ProblemError(
                f"[{self.word}] got {self.counts[1]} labels outside of the classes (labels from {given.min()} to "
                f"{given.max()}), expected 0 to {classes - 1}" + (f" or {self.ignored_label}" if self.ignores else "")
            )
        self.write_loss(top, self.counts[0])
