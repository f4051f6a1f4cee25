"""Softmax, cross entropy and local response normalisation from their definitions, for the checks of the core."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

SCALARS = {"lowest": 1e-8, "smooth": 0.1, "ignored": 0.0, "alpha": 0.5, "k": 2.0}


def _softmax(problem: Any, given: dict[str, Any], scale: float) -> dict[str, Any]:
    if "x" in given:
        power = np.exp(scale * (given["x"] - given["x"].max(1, keepdims=True)))
        y = power / power.sum(1, keepdims=True)
        return {"y": np.log(y) if problem.log else y}
    y, dy = given["y"], given["dy"]
    if problem.log:
        return {"dx": scale * (dy - np.exp(y) * dy.sum(1, keepdims=True))}
    return {"dx": scale * y * (dy - (y * dy).sum(1, keepdims=True))}


def _entropy(problem: Any, given: dict[str, Any], scale: float) -> dict[str, Any]:
    y, label = given["y"], np.trunc(given["label"]).astype(int)
    counts = label != SCALARS["ignored"] if problem.ignoring else np.ones(label.shape, bool)
    inside = (label >= 0) & (label < problem.channels)
    if problem.direction == "forward":
        chosen = np.take_along_axis(y, label.clip(0, problem.channels - 1)[:, None], 1)[:, 0]
        loss = -np.log(np.maximum(chosen, SCALARS["lowest"]))[counts & inside].sum()
        return {"loss": np.array([loss]), "counts": np.array([counts.sum(), (counts & ~inside).sum()])}
    hit = np.arange(problem.channels)[:, None] == label[:, None]
    target = np.where(hit, 1 - SCALARS["smooth"], SCALARS["smooth"] / (problem.channels - 1))
    return {"dx": scale * (y - target) * counts[:, None]}


def _lrn(problem: Any, given: dict[str, Any], scale: float) -> dict[str, Any]:
    def around(values: Any) -> Any:
        half = problem.size // 2
        padded = np.pad(values, ((0, 0), (half, half), (0, 0)))
        return sum(padded[:, j : j + values.shape[1]] for j in range(problem.size))

    x, share, beta = given["x"], SCALARS["alpha"] / problem.size, problem.beta
    level = SCALARS["k"] + share * around(x * x)
    if "dy" not in given:
        return {"y": x * level**-beta}
    inner = around(given["dy"] * x * level ** (-beta - 1))
    return {"dx": given["dy"] * level**-beta - 2 * share * beta * x * inner}


Meaning = Callable[[Any, dict[str, Any], float], dict[str, Any]]
# problems with {} for the dtype's word, and what they mean
PROBLEMS: dict[str, Meaning] = {
    "softmax forward {}n9 c37": _softmax,
    "softmax backward {}n9 c37": _softmax,
    "softmax forward {}n2 c21 s99": _softmax,
    "softmax backward {}n2 c21 s99": _softmax,
    "softmax forward {}n9 c37 log": _softmax,
    "softmax backward {}n9 c37 log": _softmax,
    "crossentropy forward {}n9 c37": _entropy,
    "crossentropy backward {}n9 c37": _entropy,
    "crossentropy backward {}n2 c21 s99 ignoring": _entropy,
    "lrn forward {}n2 c16 s99 size5 beta0.75": _lrn,
    "lrn backward {}n2 c16 s99 size5 beta0.75": _lrn,
}
