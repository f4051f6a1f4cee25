"""Some steps of an optimizer of the core, computed in float64 without a device."""

from __future__ import annotations

from typing import Any

import numpy as np

from clgraft.core.graph import GraphBuilder
from clgraft.core.graph.reference import evaluate
from clgraft.core.nn.builder import Build, Tensor
from clgraft.core.nn.optimizers import Optimizer

RNG = np.random.default_rng(3)
WEIGHT = RNG.standard_normal((4, 3))
GRADIENTS = RNG.standard_normal((5, 4, 3))
RATES = (0.1, 0.1, 0.05, 0.05, 0.02)


def steps(kind: str, convention: str, **options: Any) -> np.ndarray:
    """Return the weight after a step for each of the gradients and rates."""
    return after(Optimizer(kind, convention, options))


def after(optimizer: Optimizer, factors: tuple[float, float] = (1.0, 1.0)) -> np.ndarray:
    """Return the weight after all steps of an optimizer."""
    build = Build(GraphBuilder())
    gradient = build.input("gradient", WEIGHT.shape)
    weight = build.state("weight", WEIGHT.shape)
    histories: dict[str, Tensor] = {name: build.state(name, WEIGHT.shape) for name in optimizer.histories}
    for name in optimizer.names:
        build.graph.scalar(name)
    optimizer.apply(build, weight, gradient, histories, lr_mult=factors[0], decay_mult=factors[1])
    graph = build.graph.graph()
    values = {"weight": WEIGHT, **{name: np.zeros_like(WEIGHT) for name in histories}}
    for number, (array, rate) in enumerate(zip(GRADIENTS, RATES), 1):
        found = evaluate(graph, {**values, "gradient": array}, optimizer.scalars(number, rate))
        values = {name: found[name] for name in values}
    return values["weight"]
