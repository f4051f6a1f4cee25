"""Learning rates of Caffe's policies."""

from __future__ import annotations

import math
from typing import Any

from clgraft.core.model import ModelError

POLICIES = ("fixed", "step", "exp", "inv", "multistep", "poly", "sigmoid")


def check(solver: Any) -> None:
    """Raise `ModelError` if a solver's policy is unknown or lacks a number."""
    if solver.lr_policy not in POLICIES:
        raise ModelError(f"[solver] got lr_policy {solver.lr_policy!r}, expected one of {POLICIES}")
    if solver.lr_policy == "step" and solver.stepsize <= 0:
        raise ModelError(f"[solver] got stepsize {solver.stepsize}, expected a positive number")


def current_step(solver: Any, iteration: int, before: int) -> int:
    """Return how many steps a rate has made at an iteration: `before` at the iterations before it."""
    if solver.lr_policy == "step":
        return iteration // solver.stepsize
    if solver.lr_policy == "multistep":
        return before + (before < len(solver.stepvalue) and iteration >= solver.stepvalue[before])
    return before


def rate(solver: Any, iteration: int, step: int) -> float:
    """Return the learning rate.

    Parameters
    ----------
    solver : SolverParameter
    iteration : int
    step : int
        What `current_step` returned.
    """
    base, gamma, power = solver.base_lr, solver.gamma, solver.power
    if solver.lr_policy in ("step", "multistep"):
        return float(base * gamma**step)
    if solver.lr_policy == "exp":
        return float(base * gamma**iteration)
    if solver.lr_policy == "inv":
        return float(base * (1 + gamma * iteration) ** -power)
    if solver.lr_policy == "poly":
        return float(base * max(0.0, 1 - iteration / solver.max_iter) ** power)
    if solver.lr_policy == "sigmoid":
        return float(base / (1 + math.exp(-gamma * (iteration - solver.stepsize))))
    return float(base)
