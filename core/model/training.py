"""What a model of any kind gives to its trainer, and losses for models that have none of their own."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, Union

import numpy as np

from clgraft.core.model.errors import ModelError
from clgraft.core.model.lowered import LoweredNet, Net
from clgraft.core.model.ports import Port
from clgraft.core.nn import losses, softmax
from clgraft.core.nn.builder import Build, Tensor

LABEL = "label"
LOWEST = float(np.finfo(np.float32).tiny)  # probabilities below it count as that in a loss


@dataclass
class LoweredTraining(LoweredNet):
    """A net for training, for some shapes of its inputs, as a graph.

    Attributes
    ----------
    heads : tuple of Tensor
        What is differentiated, each with gradients of one coming in: the net's own losses.
    shown : mapping of str to Tensor
        What a step returns by names, such as ``loss``.
    losses : mapping of str to float
        Those of `shown` whose sums, times these weights, are the loss.
    keys : tuple of Tensor
        Keys of random numbers, inputs of the graph: each step has others.
    checks : tuple of (str, callable)
        Inputs of the net, and what raises an error for elements that do not fit.

    Notes
    -----
    Parameters that the graph itself changes, such as moving averages, are states of it.
    """

    heads: tuple[Tensor, ...] = ()
    shown: Mapping[str, Tensor] = field(default_factory=dict)
    losses: Mapping[str, float] = field(default_factory=dict)
    keys: tuple[Tensor, ...] = ()
    checks: tuple[tuple[str, Callable[[np.ndarray], None]], ...] = ()


class TrainingNet(Net, Protocol):
    """A model that a trainer trains.

    Attributes
    ----------
    convention : str
        The framework's conventions of optimizers: one of `clgraft.core.nn.optimizers.CONVENTIONS`.
    """

    convention: str

    @property
    def learned(self) -> Mapping[str, tuple[float, float]]:
        """The parameters that an optimizer changes, with their factors of the learning rate and of weight decay."""

    def lower(self, shapes: Mapping[str, tuple[int, ...]]) -> LoweredTraining:
        """Return the net as a graph for the shapes of all inputs, labels of its own losses among them."""

    def write(self, path: str | os.PathLike[str], parameters: Mapping[str, np.ndarray]) -> None:
        """Write parameters as a file of the framework's."""


Function = Callable[[Build, Mapping[str, Tensor], Mapping[str, Tensor]], Tensor]
Loss = Union[str, Function]


def named_loss(kind: str, name: str, outputs: tuple[Port, ...]) -> Function:
    """Return a loss of the first output and the input ``label``.

    Parameters
    ----------
    kind : str
        What the model is, for errors.
    name : str
        One of `LOSSES`.
    outputs : tuple of Port

    Raises
    ------
    ModelError
        If there is no such loss.
    """
    if name not in LOSSES:
        raise ModelError(f"[{kind}] got loss {name!r}, expected one of {sorted(LOSSES)}, or a function")
    own = LOSSES[name]
    return lambda build, values, labels: own(build, values[outputs[0].name], labels[LABEL])


def _softmax_cross_entropy(build: Build, x: Tensor, label: Tensor) -> Tensor:
    sizes = softmax.around(x.shape, 1)
    _expect_labels(label, sizes[0] * sizes[2], x)
    total = losses.softmax_cross_entropy(build, x, label, sizes, lowest=LOWEST)
    return _mean(build, total, label.size)


def _cross_entropy(build: Build, y: Tensor, label: Tensor) -> Tensor:
    sizes = softmax.around(y.shape, 1)
    _expect_labels(label, sizes[0] * sizes[2], y)
    total = losses.cross_entropy(build, y, label, sizes, lowest=LOWEST)
    return _mean(build, total, label.size)


def _squares(build: Build, x: Tensor, label: Tensor) -> Tensor:
    _expect_labels(label, x.size, x)
    return _mean(build, losses.summed(build, "y0 = (x0 - x1) * (x0 - x1);", x, label), x.size)


def _absolute(build: Build, x: Tensor, label: Tensor) -> Tensor:
    _expect_labels(label, x.size, x)
    return _mean(build, losses.summed(build, "y0 = fabs(x0 - x1);", x, label), x.size)


def _sigmoid_cross_entropy(build: Build, x: Tensor, label: Tensor) -> Tensor:
    _expect_labels(label, x.size, x)
    text = "y0 = fmax(x0, 0) - x0 * x1 + log1p(exp(-fabs(x0)));"
    return _mean(build, losses.summed(build, text, x, label), x.size)


LOSSES: dict[str, Callable[[Build, Tensor, Tensor], Tensor]] = {
    "softmax_cross_entropy": _softmax_cross_entropy,
    "cross_entropy": _cross_entropy,
    "sigmoid_cross_entropy": _sigmoid_cross_entropy,
    "l2": _squares,
    "mse": _squares,
    "l1": _absolute,
}


def _expect_labels(label: Tensor, count: int, x: Tensor) -> None:
    if math.prod(label.shape) != count:
        raise ModelError(
            f"[trainer] got labels of shape {label.shape} for an output of shape {x.shape}, expected {count} elements"
        )


def _mean(build: Build, total: Tensor, count: int) -> Tensor:
    return build.pointwise("y0 = x0 * share;", [total], {"share": 1 / max(1, count)})[0]
