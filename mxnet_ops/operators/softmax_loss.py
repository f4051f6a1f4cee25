"""Softmax with a loss after it: MXNet's SoftmaxOutput and softmax_cross_entropy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from clgraft.core.nn import losses, softmax
from clgraft.core.nn.builder import Build, Tensor
from clgraft.mxnet_ops.engine.attributes import Attributes
from clgraft.mxnet_ops.engine.operator import Operator, Shape, Shapes
from clgraft.mxnet_ops.engine.registry import register

NORMALIZATIONS = {"null": "places", "batch": "labels", "valid": "none"}  # valid labels are counted
LOWEST_PROBABILITY = 1e-8  # in the logarithm of softmax_cross_entropy, as in MXNet


@register
@dataclass(frozen=True)
class SoftmaxOutput(Operator):
    """``ocl_softmax_output``: softmax forward, the gradient of its cross entropy backward.

    Parameters
    ----------
    grad_scale : float
        Factor of the gradient; 1 by default.
    multi_output : bool
        Along axis 1, with a label for every place of the other axes; data (n, c, ...), label (n, ...), (n, 1, ...) or
        (n, product of the rest).
    preserve_shape : bool
        Along the last axis; data (..., c), label (...). With neither, along all axes but the first as one.
    use_ignore, ignore_label : bool, float
        Whether labels of this value (-1 by default) have no gradient.
    normalization : str
        What the gradient is divided by: ``null`` (default) 1, with `multi_output` the places of an example; ``batch``
        the number of labels; ``valid`` that of labels other than `ignore_label`.
    out_grad : bool
        Multiply the gradient by the output's, which is else not read. (MXNet 1.9.1 multiplies by the output itself.)
    smooth_alpha : float
        This share of the target is spread over the other classes (not with `multi_output`).

    Notes
    -----
    A label of data's shape is the target itself; then only `grad_scale` and `out_grad` count. A label that names no
    class has no target. The gradient of label is 0; MXNet's own leaves that array as it is.
    """

    op_type: ClassVar[str] = "ocl_softmax_output"
    in_place: ClassVar[bool] = True
    backward_reads_outputs: ClassVar[bool] = True

    grad_scale: float
    ignore_label: float
    multi_output: bool
    use_ignore: bool
    preserve_shape: bool
    normalization: str
    out_grad: bool
    smooth_alpha: float

    @property
    def backward_reads_gradients(self) -> bool:  # type: ignore[override]
        return self.out_grad

    @property
    def arguments(self) -> tuple[str, ...]:
        return ("data", "label")

    @property
    def inferred(self) -> tuple[str, ...]:
        return ("label",)

    @classmethod
    def read(cls, attributes: Attributes) -> SoftmaxOutput:
        operator = cls(
            grad_scale=attributes.number("grad_scale", 1.0),
            ignore_label=attributes.number("ignore_label", -1.0),
            multi_output=attributes.flag("multi_output", False),
            use_ignore=attributes.flag("use_ignore", False),
            preserve_shape=attributes.flag("preserve_shape", False),
            normalization=attributes.choice("normalization", NORMALIZATIONS, "null"),
            out_grad=attributes.flag("out_grad", False),
            smooth_alpha=attributes.number("smooth_alpha", 0.0),
        )
        if not 0 <= operator.smooth_alpha <= 1:
            raise attributes.error("smooth_alpha", operator.smooth_alpha, "a number from 0 to 1")
        return operator

    def infer(self, shapes: Sequence[Shape | None]) -> Shapes | None:
        data, label = shapes
        if data is None:
            return None
        if len(data) < (2 if self.multi_output else 1):
            raise self.error("data", f"of shape {data}", "at least 2 axes")
        if self.multi_output:
            flat = (data[0], math.prod(data[2:]))
            allowed = [flat, (data[0], *data[2:]), (data[0], 1, *data[2:])]
        else:
            allowed = [data[:-1]]
        if label is not None and label not in (*allowed, data):
            raise self.error("label", f"of shape {label}", f"one of {allowed}, or {data}")
        return [data, label or allowed[0]], [data], []

    def shown_loss(self, build: Build, output: Tensor, label: Tensor) -> Tensor:
        """Return the mean cross entropy of the output, for a user to look at."""
        sizes, ignored = self._sizes(output.shape), float(int(self.ignore_label)) if self.use_ignore else None
        return losses.mean_cross_entropy(build, output, label, sizes, ignored=ignored)

    def _sizes(self, data: Shape) -> tuple[int, int, int]:
        if self.multi_output:
            return softmax.around(data, 1)
        return softmax.around_all_from(data, len(data) - 1 if self.preserve_shape else 1)

    def build(self, build: Build, data: Tensor, label: Tensor) -> Tensor:
        sizes = self._sizes(data.shape)
        shown: tuple[int, ...] = ()
        if data.ndim == 1 and data.dtype == "float32" and not build.training:
            # MXNet takes a vector for examples of one class each, but in inference oneDNN for one example
            shown = (1, data.size, 1)
        if label.shape == data.shape:
            given = {"scale": self.grad_scale, "weighted": self.out_grad, "shown": shown}
            return losses.softmax_with_targets(build, data, label, sizes, **given)
        ignored = float(int(self.ignore_label))
        return losses.softmax_with_labels(
            build,
            data,
            label,
            sizes,
            scale=self.grad_scale,
            normalization=NORMALIZATIONS[self.normalization],
            smooth=0.0 if self.multi_output else self.smooth_alpha,
            ignored=ignored if self.use_ignore else None,
            counted=ignored if self.normalization == "valid" else None,
            weighted=self.out_grad,
            shown=shown,
        )


@register
@dataclass(frozen=True)
class SoftmaxCrossEntropy(Operator):
    """``ocl_softmax_cross_entropy``: data (n, c), label (n,); the sum of the cross entropies, of shape (1,).

    Notes
    -----
    Probabilities below 1e-8 count as 1e-8 in the loss. A label that names no class adds nothing to it; MXNet's own
    reads beyond the array. The gradient of label is 0; MXNet's own refuses to give one.
    """

    op_type: ClassVar[str] = "ocl_softmax_cross_entropy"
    vectors: ClassVar[frozenset[str]] = frozenset({"label"})

    @property
    def arguments(self) -> tuple[str, ...]:
        return ("data", "label")

    @classmethod
    def read(cls, attributes: Attributes) -> SoftmaxCrossEntropy:
        return cls()

    def infer(self, shapes: Sequence[Shape | None]) -> Shapes | None:
        data = shapes[0]
        if data is None:
            return None
        if len(data) != 2:
            raise self.error("data", f"of shape {data}", "2 axes")
        needed = [data, data[:1]]
        self.agree(shapes, needed)
        return needed, [(1,)], []

    def build(self, build: Build, data: Tensor, label: Tensor) -> Tensor:
        sizes = (*data.shape, 1)
        return losses.softmax_cross_entropy(build, data, label, sizes, lowest=LOWEST_PROBABILITY)
