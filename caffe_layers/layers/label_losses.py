"""Losses of a few thousand elements: hinge, logarithm and information gain of labels, and contrast of pairs."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
from google.protobuf.message import DecodeError

from clgraft.caffe_layers.layers.loss import Loss
from clgraft.caffe_layers.layers.softmax import ClassLoss
from clgraft.caffe_layers.prototxt import schema
from clgraft.core.errors import ProblemError
from clgraft.core.model import contents
from clgraft.core.nn import label_losses, losses, softmax
from clgraft.core.nn.builder import Build, Tensor

LOWEST_PROBABILITY = 1e-20  # Caffe's kLOG_THRESHOLD


class _MeanLoss(Loss):
    """A sum divided by the number of examples."""

    results: ClassVar[tuple] = ("loss",)

    def prepare(self, shapes: list) -> list:
        self.expect(len(shapes[0]) > 0, f"shape {shapes[0]}", "at least 1 axis")
        self.outer = shapes[0][0]
        self.classes = math.prod(shapes[0][1:])
        self.normalizer = losses.normalizer("examples", self.outer)
        self.expect_labels(shapes)
        self.loss = np.zeros(1, self.real)
        return [(), *super().prepare(shapes)]

    def expect_labels(self, shapes: list) -> None:
        """Raise `ProblemError` unless there is a label for each example."""
        count = math.prod(shapes[1])
        self.expect(count == self.outer, f"{count} labels of shape {shapes[1]}", f"{self.outer}, one for each example")

    def summed(self, build: Build, bottoms: list, scale: Any) -> Tensor:
        """Return the sum; its gradient is multiplied by what `scale` returns for the names of scalars."""
        raise NotImplementedError

    def build(self, build: Build, bottoms: list, blobs: list) -> Tensor:
        return self.summed(build, bottoms, self.scalar(build, "scale"))

    def in_net(self, build: Build, bottoms: list, weight: float) -> tuple[Tensor, ...]:
        total = self.summed(build, bottoms, losses.share(weight, self.normalizer))
        return (losses.shared(build, total, self.normalizer),)

    def end(self, bottom: Any, top: Any) -> None:
        top[0].data[...] = losses.share(self.loss[0], self.normalizer)


class OclHingeLoss(_MeanLoss):
    """The mean over the examples of ``max(0, 1 - x)`` at the label plus ``max(0, 1 + x)`` elsewhere, or of squares."""

    word: ClassVar[str] = "hinge_loss"

    def summed(self, build: Build, bottoms: list, scale: Any) -> Tensor:
        given = self.parameters.hinge_loss_param
        squared = given.norm == given.L2
        return label_losses.summed_hinge(build, *bottoms, self.classes, squared=squared, scale=scale)


class OclMultinomialLogisticLoss(_MeanLoss):
    """The mean over the examples of ``-log(p)`` of the probability at the label."""

    word: ClassVar[str] = "multinomial_logistic_loss"

    def summed(self, build: Build, bottoms: list, scale: Any) -> Tensor:
        return label_losses.summed_log(build, *bottoms, self.classes, lowest=LOWEST_PROBABILITY, scale=scale)


class OclContrastiveLoss(_MeanLoss):
    """Half the mean over pairs: the squared distance of those that bottom 2 says are alike, of others what is left.

    That is ``max(0, margin - d)`` squared, or with `legacy_version` ``max(0, margin - d^2)``.
    """

    word: ClassVar[str] = "contrastive_loss"
    bottoms: ClassVar[tuple] = (3, 3)

    def expect_labels(self, shapes: list) -> None:
        a, b, alike = shapes
        good = a[:1] == b[:1] and math.prod(a) == math.prod(b)
        self.expect(good, f"shape {b} of bottom 1", f"as many examples and elements as {a}, the shape of bottom 0")
        self.expect(math.prod(alike) == self.outer, f"shape {alike} of bottom 2", f"{self.outer} numbers")

    def summed(self, build: Build, bottoms: list, scale: Any) -> Tensor:
        given = self.parameters.contrastive_loss_param
        return label_losses.summed_contrast(
            build,
            *bottoms,
            margin=given.margin,
            squares=given.legacy_version,
            scale=scale,
        )

    def expect_gradients(self, propagate_down: Any) -> None:
        self.expect(not propagate_down[2], "propagate_down for bottom 2", "none: it has no gradient")


class OclInfogainLoss(ClassLoss):
    """The mean of ``-sum of H[label, class] log(softmax)``; H is bottom 2, or `source`, a file of a BlobProto.

    A second top gets the probabilities.
    """

    word: ClassVar[str] = "infogain_loss"
    bottoms: ClassVar[tuple] = (2, 3)
    results: ClassVar[tuple] = ("loss", "valid")
    gains: Any = None

    def configure(self, shapes: list) -> None:
        super().configure(shapes)
        if len(shapes) == 3:
            return
        source = self.parameters.infogain_loss_param.source
        self.expect(bool(source), "no source and 2 bottoms", "one of the two")
        blob = schema.message_class("BlobProto")()
        try:
            blob.ParseFromString(contents(self.word, source, "source")[1])
        except DecodeError as error:
            raise ProblemError(f"[{self.word}] got {source}, expected a BlobProto: {error}") from None
        self.gains = np.array(blob.double_data or blob.data, np.float32)

    def prepare(self, shapes: list) -> list:
        self.read_sizes(shapes, self.parameters.infogain_loss_param.axis)
        count = self.gains.size if self.gains is not None else math.prod(shapes[2])
        self.expect(count == self.classes**2, f"{count} gains", f"{self.classes} x {self.classes}")
        self.loss, self.valid = np.zeros(1, self.real), np.zeros(1, self.real)
        return [(), *super().prepare(shapes)]

    def summed(self, build: Build, bottoms: list, **more: Any) -> tuple:
        x, label, *given = bottoms
        gains = given[0] if given else build.constant(self.gains)
        sizes = softmax.around(x.shape, self.axis)
        return label_losses.summed_infogain(build, x, label, gains, sizes, lowest=LOWEST_PROBABILITY, **more)

    def end(self, bottom: Any, top: Any) -> None:
        self.write_loss(top, self.valid[0])
