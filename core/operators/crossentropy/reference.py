"""Cross entropy and its gradient in float64 with NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


def cross_entropy(
    problem: Any, arrays: Mapping[str, np.ndarray], scalars: Mapping[str, float]
) -> dict[str, np.ndarray]:
    """Compute a cross entropy problem's results from their definitions.

    Parameters
    ----------
    problem : CrossEntropyProblem
        In any direction.
    arrays : mapping of str to numpy.ndarray
        The inputs by name, of the problem's shapes.
    scalars : mapping of str to float
        All of the problem's.
    """
    label = np.trunc(arrays["label"]).astype(np.int64)
    counted = np.ones(label.shape, bool)
    if problem.ignoring:
        counted = label != scalars["ignored"]
    inside = (label >= 0) & (label < problem.channels)
    counts = np.array([counted.sum(), (counted & ~inside).sum()])
    if problem.direction == "count":
        return {"counts": counts}
    y = np.asarray(arrays["y"], np.float64)
    if problem.direction == "forward":
        chosen = np.zeros(label.shape)
        if problem.channels:
            chosen = np.take_along_axis(y, label.clip(0, problem.channels - 1)[:, None], 1)[:, 0]
        losses = -np.log(np.maximum(chosen, scalars["lowest"]))
        return {"loss": np.array([losses[counted & inside].sum()]), "counts": counts}
    smooth = scalars["smooth"]
    hit = np.arange(problem.channels)[:, None] == label[:, None]
    elsewhere = smooth / (problem.channels - 1) if problem.channels > 1 else 0.0
    target = np.where(hit, 1 - smooth, elsewhere)
    dx = scalars["scale"] * (y - target) * counted[:, None]
    if problem.weighted:
        dx = dx * arrays["dy"]
    if problem.by_count:
        dx = dx / (arrays["counts"][0] or 1)
    return {"dx": dx}
