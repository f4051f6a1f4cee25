"""Caffe's Accuracy in nets without Caffe."""

from __future__ import annotations

from typing import Any

from clgraft.core.errors import ProblemError
from clgraft.core.nn import metrics, softmax
from clgraft.core.nn.builder import Build, Tensor


def accuracy(build: Build, layer: Any, scores: Tensor, labels: Tensor) -> list[Tensor]:
    """Return the tops: the share of labels among the best scores, and if there is a second one that of each class."""
    given = layer.accuracy_param
    axis = given.axis + scores.ndim if given.axis < 0 else given.axis
    if not 0 <= axis < scores.ndim:
        raise ProblemError(f"[accuracy] got axis {given.axis}, expected one of scores of shape {scores.shape}")
    sizes = softmax.around(scores.shape, axis)
    if labels.size != sizes[0] * sizes[2]:
        raise ProblemError(f"[accuracy] got labels of shape {labels.shape}, expected {sizes[0] * sizes[2]}")
    if not 1 <= given.top_k <= sizes[1]:
        raise ProblemError(f"[accuracy] got top_k {given.top_k}, expected 1 to {sizes[1]}")
    ignored = given.ignore_label if given.HasField("ignore_label") else None
    found = metrics.accuracy(build, scores, labels, sizes, most=given.top_k, ignored=ignored)
    return list(found)[: len(layer.top)]
