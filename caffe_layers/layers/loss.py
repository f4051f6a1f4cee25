"""What loss layers share: the loss weight, labels to ignore, what a loss is divided by; and losses of element pairs.

Caffe's own loss layers have a loss weight of 1 by default. A Python layer has none: its prototxt has to say
``loss_weight: 1``, and the swap writes it.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np

from clgraft.caffe_layers.layers import programs
from clgraft.caffe_layers.layers.layer import OclLayer, buffer
from clgraft.caffe_layers.prototxt.marks import ELEMENTS, FORCED
from clgraft.core.operators.pointwise.formulas import sums


class Loss(OclLayer):
    """Base class of losses with labels as their second bottom.

    Attributes
    ----------
    ignores, ignored_label : bool, int
        From `loss_param`.
    outer, inner : int
        Examples, and elements of each that have a loss; set by `prepare`.
    """

    bottoms: ClassVar[tuple] = (2, 2)
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
        counts = {"FULL": self.outer * self.inner, "VALID": valid, "BATCH_SIZE": self.outer, "NONE": 1}
        return float(max(1, counts[self.normalization]))

    def weight(self, top: Any) -> float:
        """Return the loss weight: Caffe passes it as the top's gradient."""
        return float(top[0].diff.flat[0])

    def leave_labels(self, propagate_down: Any, bottom: Any) -> None:
        """Refuse a gradient of the labels, as Caffe does; where the whole net is forced to have gradients it is 0."""
        if not propagate_down[1]:
            return
        self.expect(FORCED in self.param_str, "propagate_down for the labels", "none: labels have no gradient")
        count = (math.prod(self.shapes[1]),)
        zero = programs.make(self.context, "dt = 0;", {"t": count}, {"dt": None})
        zero.run({"t": buffer(bottom[1].data), "dt": buffer(bottom[1].diff)})


class OclSigmoidCrossEntropyLoss(Loss):
    """The mean of ``-t log(sigmoid(x)) - (1 - t) log(1 - sigmoid(x))`` over targets t."""

    word: ClassVar[str] = "sigmoid_cross_entropy_loss"
    results: ClassVar[tuple] = ("loss", "valid")
    formula: ClassVar[sums.Loss] = sums.SIGMOID_CROSS_ENTROPY

    def configure(self, shapes: list) -> None:
        self.read_loss(default="BATCH_SIZE")
        self.ignored = float(self.ignored_label) if self.ignores else math.nan  # equals nothing

    def prepare(self, shapes: list) -> list:
        shape, count = shapes[0], math.prod(shapes[0])
        self.expect(math.prod(shapes[1]) == count, f"{math.prod(shapes[1])} targets", f"{count}, one for each element")
        self.outer, self.inner = shape[0], math.prod(shape[1:])
        self.inputs = {"x": (count,), "t": (count,)}
        outputs = {"loss": (1,), "valid": (1,)}
        self.forward_program = programs.make(self.context, self.formula.forward, self.inputs, outputs, ("ignored",))
        self.backward_program: programs.Program | None = None
        self.loss, self.valid = np.zeros(1, self.real), np.zeros(1, self.real)
        return [()]

    def compute(self, bottom: Any, top: Any) -> None:
        given = {"x": buffer(bottom[0].data), "t": buffer(bottom[1].data)}
        results = {"loss": buffer(self.loss), "valid": buffer(self.valid)}
        self.forward_program.run({**given, **results}, (self.ignored,))

    def end(self, bottom: Any, top: Any) -> None:
        self.normalizer = self.normalize(int(self.valid[0]))
        top[0].data[...] = self.loss[0] / self.normalizer

    def differentiate(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        self.leave_labels(propagate_down, bottom)
        if not propagate_down[0]:
            return
        if self.backward_program is None:
            scalars = ("ignored", "scale")
            self.backward_program = programs.make(
                self.context, self.formula.backward, self.inputs, {"dx": None}, scalars
            )
        given = {"x": buffer(bottom[0].data), "t": buffer(bottom[1].data), "dx": buffer(bottom[0].diff)}
        scale = self.late(lambda top: self.weight(top) / self.normalizer, top)
        self.backward_program.run(given, (self.ignored, scale))


class OclEuclideanLoss(Loss):
    """Half the mean over the examples of the squared distance of two bottoms; both may have gradients."""

    word: ClassVar[str] = "euclidean_loss"
    results: ClassVar[tuple] = ("loss",)
    formula: ClassVar[sums.Loss] = sums.SQUARED_DISTANCE

    def prepare(self, shapes: list) -> list:
        a, b = shapes
        good = a[:1] == b[:1] and math.prod(a[1:]) == math.prod(b[1:])
        self.expect(good, f"shape {b} of bottom 1", f"as many examples and elements as {a}, the shape of bottom 0")
        count = math.prod(a)
        self.divisor = max(1, count if ELEMENTS in self.param_str else a[0])
        self.inputs = {"a": (count,), "b": (count,)}
        self.forward_program = programs.make(self.context, self.formula.forward, self.inputs, {"loss": (1,)})
        self.backward_program: programs.Program | None = None
        self.loss = np.zeros(1, self.real)
        return [()]

    def compute(self, bottom: Any, top: Any) -> None:
        given = {"a": buffer(bottom[0].data), "b": buffer(bottom[1].data), "loss": buffer(self.loss)}
        self.forward_program.run(given)

    def end(self, bottom: Any, top: Any) -> None:
        top[0].data[...] = self.loss[0] / self.divisor / 2

    def differentiate(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        if self.backward_program is None:
            self.backward_program = programs.make(
                self.context, self.formula.backward, self.inputs, {"dx": None}, ("scale",)
            )
        for index, sign in ((0, 1), (1, -1)):
            if propagate_down[index]:
                factor = self.late(lambda top, sign=sign: sign * self.weight(top) / self.divisor, top)
                given = {"a": buffer(bottom[0].data), "b": buffer(bottom[1].data), "dx": buffer(bottom[index].diff)}
                self.backward_program.run(given, (factor,))
