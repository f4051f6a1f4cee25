"""What loss layers share: the loss weight, labels to ignore, what a loss is divided by; and losses of element pairs.

Caffe's own loss layers have a loss weight of 1 by default. A Python layer has none: its prototxt has to say
``loss_weight: 1``, and the swap writes it.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np

from clgraft.caffe_layers.layers.built import BuiltLayer
from clgraft.caffe_layers.prototxt.marks import ELEMENTS, FORCED
from clgraft.core.nn import losses
from clgraft.core.nn.builder import Build, Tensor

# mode of normalization -> what losses are divided by
NORMALIZATIONS = {"FULL": "places", "VALID": "valid", "BATCH_SIZE": "examples", "NONE": "none"}


class Loss(BuiltLayer):
    """Base class of losses with labels as their second bottom.

    Attributes
    ----------
    ignores, ignored_label : bool, int
        From `loss_param`.
    outer, inner : int
        Examples, and elements of each that have a loss; set by `prepare`.
    """

    bottoms: ClassVar[tuple] = (2, 2)
    first_top: ClassVar[int] = 1
    zeros: ClassVar[bool] = True
    may_be_in_place: ClassVar[bool] = False

    def read_loss(self, default: str) -> None:
        """Read `loss_param`; `default` is the normalization where neither of its two forms is given."""
        given = self.parameters.loss_param
        self.ignores, self.ignored_label = given.HasField("ignore_label"), given.ignore_label
        modes = type(given).DESCRIPTOR.enum_types_by_name["NormalizationMode"].values_by_number
        self.normalization = default
        if given.HasField("normalization"):
            self.normalization = modes[given.normalization].name
        elif given.HasField("normalize"):
            self.normalization = "VALID" if given.normalize else "BATCH_SIZE"

    def normalize(self, valid: int) -> float:
        """Return what the loss is divided by: at least 1, for batches in which every label is ignored."""
        return losses.normalizer(NORMALIZATIONS[self.normalization], self.outer, self.inner, valid)

    def weight(self, top: Any) -> float:
        """Return the loss weight: Caffe passes it as the top's gradient."""
        return float(top[0].diff.flat[0])

    def scale(self, top: Any) -> float:
        """Return the factor of the gradient."""
        return losses.share(self.weight(top), self.normalizer)

    def write_loss(self, top: Any, valid: float) -> None:
        """Write the loss, a sum so far, divided by what so many labels that count give."""
        self.normalizer = self.normalize(int(valid))
        top[0].data[...] = losses.share(self.loss[0], self.normalizer)

    def in_net(self, build: Build, bottoms: list, weight: float) -> tuple[Tensor, ...]:
        """Return the tops in a net without Caffe; the gradient is that of `weight` times the first one, the loss."""
        raise NotImplementedError

    def counts_labels(self) -> bool:
        """Return whether the loss is divided by a number that the labels decide."""
        return bool(self.normalization == "VALID" and self.ignores)

    def expect_gradients(self, propagate_down: Any) -> None:
        # as in Caffe; where the whole net is forced to have gradients theirs is 0
        good = not propagate_down[1] or FORCED in self.param_str
        self.expect(good, "propagate_down for the labels", "none: labels have no gradient")


class OclSigmoidCrossEntropyLoss(Loss):
    """The mean of ``-t log(sigmoid(x)) - (1 - t) log(1 - sigmoid(x))`` over targets t."""

    word: ClassVar[str] = "sigmoid_cross_entropy_loss"
    results: ClassVar[tuple] = ("loss", "valid")

    def configure(self, shapes: list) -> None:
        self.read_loss(default="BATCH_SIZE")
        self.ignored = float(self.ignored_label) if self.ignores else math.nan  # equals nothing

    def prepare(self, shapes: list) -> list:
        shape, count = shapes[0], math.prod(shapes[0])
        self.expect(math.prod(shapes[1]) == count, f"{math.prod(shapes[1])} targets", f"{count}, one for each element")
        self.outer, self.inner = shape[0], math.prod(shape[1:])
        self.loss, self.valid = np.zeros(1, self.real), np.zeros(1, self.real)
        return [(), *super().prepare(shapes)]

    def build(self, build: Build, bottoms: list, blobs: list) -> tuple:
        scale = self.scalar(build, "scale")
        return losses.summed_sigmoid_cross_entropy(build, *bottoms, ignored=self.ignored, scale=scale)

    def in_net(self, build: Build, bottoms: list, weight: float) -> tuple[Tensor, ...]:
        self.expect(not self.counts_labels(), "normalization VALID with an ignore_label", "another one to train")
        number, ignored = self.normalize(self.outer * self.inner), self.ignored
        total, _ = losses.summed_sigmoid_cross_entropy(
            build, *bottoms, ignored=ignored, scale=losses.share(weight, number)
        )
        return (losses.shared(build, total, number),)

    def end(self, bottom: Any, top: Any) -> None:
        self.write_loss(top, self.valid[0])


class OclEuclideanLoss(Loss):
    """Half the mean over the examples of the squared distance of two bottoms; both may have gradients."""

    word: ClassVar[str] = "euclidean_loss"
    results: ClassVar[tuple] = ("loss",)

    def prepare(self, shapes: list) -> list:
        a, b = shapes
        good = a[:1] == b[:1] and math.prod(a[1:]) == math.prod(b[1:])
        self.expect(good, f"shape {b} of bottom 1", f"as many examples and elements as {a}, the shape of bottom 0")
        count = math.prod(a)
        by_elements = ELEMENTS in self.param_str
        self.normalizer = losses.normalizer("places" if by_elements else "examples", count if by_elements else a[0])
        self.loss = np.zeros(1, self.real)
        return [(), *super().prepare(shapes)]

    def build(self, build: Build, bottoms: list, blobs: list) -> Tensor:
        return losses.squared_distance(build, *bottoms, scale=self.scalar(build, "scale"))

    def in_net(self, build: Build, bottoms: list, weight: float) -> tuple[Tensor, ...]:
        total = losses.squared_distance(build, *bottoms, scale=losses.share(weight, self.normalizer))
        return (losses.shared(build, total, losses.halved(self.normalizer)),)

    def end(self, bottom: Any, top: Any) -> None:
        top[0].data[...] = losses.share(self.loss[0], losses.halved(self.normalizer))

    def expect_gradients(self, propagate_down: Any) -> None:
        """Return: both bottoms may have gradients."""
