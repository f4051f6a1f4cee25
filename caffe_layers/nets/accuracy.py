"""What nets compute for their logs and losses beside the layers of clgraft."""

from __future__ import annotations

from typing import Any

import numpy as np

from clgraft.core.errors import ProblemError
from clgraft.core.nn import softmax
from clgraft.core.nn.builder import Build, Tensor
from clgraft.core.operators.pointwise import Reduction


def accuracy(build: Build, layer: Any, scores: Tensor, labels: Tensor) -> list[Tensor]:
    """Return the tops of Caffe's Accuracy: the share of labels among the best scores, and that of each class.

    A label is right if at most `top_k` classes have its score or a higher one, itself among them.
    """
    given = layer.accuracy_param
    axis = given.axis + scores.ndim if given.axis < 0 else given.axis
    if not 0 <= axis < scores.ndim:
        raise ProblemError(f"[accuracy] got axis {given.axis}, expected one of scores of shape {scores.shape}")
    outer, classes, inner = softmax.around(scores.shape, axis)
    if labels.size != outer * inner:
        raise ProblemError(f"[accuracy] got labels of shape {labels.shape}, expected {outer * inner}")
    if not 1 <= given.top_k <= classes:
        raise ProblemError(f"[accuracy] got top_k {given.top_k}, expected 1 to {classes}")
    x = build.reshape(scores, (outer, classes, inner))
    label = build.reshape(labels, (outer, 1, inner))
    number = build.reshape(build.constant(np.arange(classes, dtype=np.float32)), (1, classes, 1))
    along = Reduction("sum", (1,), (outer, 1, inner))
    (own,) = build.pointwise("y0 = x2 == x1 ? x0 : 0;", [x, label, number], reduce=(along,))
    (better,) = build.pointwise("y0 = x0 >= x1 ? 1 : 0;", [x, own], reduce=(along,))
    counts = f"x1 == {float(given.ignore_label)} ? 0 : 1" if given.HasField("ignore_label") else "1"
    text = f"real counts = {counts}; y0 = x0 <= {float(given.top_k)} ? counts : 0; y1 = counts;"
    total = Reduction("sum", (0, 1, 2), (1,))
    right, valid = build.pointwise(text, [better, label], reduce=(total, total))
    (share,) = build.pointwise("y0 = x1 > 0 ? x0 / x1 : 0;", [right, valid])
    tops = [build.reshape(share, ())]
    if len(layer.top) > 1:
        by_class = Reduction("sum", (0, 2), (1, classes, 1))
        text = f"real counts = x2 == x1 ? ({counts}) : 0; y0 = x3 <= {float(given.top_k)} ? counts : 0; y1 = counts;"
        found = build.pointwise(text, [x, label, number, better], reduce=(by_class, by_class))
        (each,) = build.pointwise("y0 = x1 > 0 ? x0 / x1 : 0;", found)
        tops.append(build.reshape(each, (classes,)))
    return tops


def summed(build: Build, top: Tensor, weight: float) -> Tensor:
    """Return the sum of a top times its weight in the loss."""
    flat = build.reshape(top, (top.size,))
    return build.pointwise("y0 = x0 * weight;", [flat], {"weight": weight}, (Reduction("sum", (0,), (1,)),))[0]
