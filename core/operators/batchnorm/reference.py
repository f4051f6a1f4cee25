"""Batch norm and its gradients in float64 with NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

# activation -> its value of the norm, and the gradient's factor, of the norm and the scalars
FOLLOWING: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "": (lambda v: v, lambda v: np.ones_like(v)),
    "relu": (lambda v: np.where(v > 0, v, 0), lambda v: np.where(v > 0, 1.0, 0.0)),
    "relu_keep_nan": (lambda v: np.where(v < 0, 0, v), lambda v: np.where(np.isnan(v), v, np.where(v > 0, 1.0, 0.0))),
    "leaky_relu": (lambda v, slope: np.where(v > 0, v, slope * v), lambda v, slope: np.where(v <= 0, slope, 1.0)),
    "leaky_relu_stop_nan": (
        lambda v, slope: np.where(v > 0, v, slope * v),
        lambda v, slope: np.where(v > 0, 1.0, np.where(v <= 0, slope, 0.0)),
    ),
    "clip": (
        lambda v, low, high: np.where(v < low, low, np.where(v > high, high, v)),
        lambda v, low, high: np.where((v < low) | (v > high), 0.0, 1.0),
    ),
}


def normalize(problem: Any, arrays: Mapping[str, np.ndarray], scalars: Mapping[str, float]) -> dict[str, np.ndarray]:
    """Compute a batch norm problem's results from their definitions.

    Parameters
    ----------
    problem : BatchNormProblem
        In any direction.
    arrays : mapping of str to numpy.ndarray
        The inputs by name, float64, of the problem's shapes.
    scalars : mapping of str to float
        All of the problem's.
    """
    if problem.direction == "update_statistics":
        return {
            f"running_{name}": scalars["keep"] * arrays[f"running_{name}"] + scalars[f"add_{name}"] * arrays[name]
            for name in ("mean", "var")
        }
    x, gamma = arrays["x"], arrays["gamma"][:, None]
    count = max(1, problem.batch * problem.pixels)
    if problem.direction == "forward_training":
        mean = x.sum((0, 2)) / count
        var = ((x - mean[:, None]) ** 2).sum((0, 2)) / count
    else:
        mean, var = arrays["mean"], arrays["var"]
    deviation = np.sqrt(var + scalars["eps"])
    normal = (x - mean[:, None]) / deviation[:, None]
    value, slope = FOLLOWING[problem.activation]
    own = [scalars[name] for name in problem.activation_scalars]
    if problem.direction == "forward_inference":
        return {"y": value(normal * gamma + arrays["beta"][:, None], *own)}
    if problem.direction == "forward_training":
        added = arrays["residual"] if problem.residual else 0
        results = {"y": value(normal * gamma + arrays["beta"][:, None] + added, *own), "mean": mean, "var": var}
        if problem.activation and not problem.residual:  # any shift serves; the mean makes the offset beta
            results |= {"shift": mean, "scale": arrays["gamma"] / deviation, "offset": arrays["beta"]}
        return results
    dy = arrays["dy"]
    if problem.activation:
        if problem.direction == "backward_training":
            shift, scale, offset = (arrays[name][:, None] for name in ("shift", "scale", "offset"))
            dy = dy * slope((x - shift) * scale + offset, *own)
        else:
            dy = dy * slope(normal * gamma + arrays["beta"][:, None], *own)
    dgamma, dbeta = (dy * normal).sum((0, 2)), dy.sum((0, 2))
    dx = dy
    if problem.direction == "backward_training":
        dx = dy - dbeta[:, None] / count - normal * dgamma[:, None] / count
    results = {"dx": dx * gamma / deviation[:, None], "dgamma": dgamma, "dbeta": dbeta}
    return {**results, "dbias": dbeta * 0 + dgamma * 0} if problem.bias else results
