"""What a model of any kind gives to its session."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from clgraft.core.model.ports import Port
from clgraft.core.nn.builder import Build, Tensor


@dataclass(frozen=True)
class Chosen:
    """Which parts of an axis a value has, whose size depends on elements; the graph computes all that could be.

    Attributes
    ----------
    flags : Tensor
        A number for each place of the axis; what stands where it is 0 is left out.
    axis : int
    none : numpy.ndarray, optional
        What the value is without any part; by default an array of size 0.
    """

    flags: Tensor
    axis: int
    none: np.ndarray | None = None

    def of(self, array: np.ndarray, flags: np.ndarray) -> np.ndarray:
        """Return the parts that are chosen."""
        kept = flags.reshape(-1) != 0
        return self.none.copy() if self.none is not None and not kept.any() else array.compress(kept, self.axis)


@dataclass
class LoweredNet:
    """A net for some shapes of its inputs as a graph.

    Attributes
    ----------
    build : Build
        Holds the graph, and constants of its own.
    inputs : mapping of str to Tensor
        The net's inputs by their names.
    parameters : mapping of str to str
        For inputs of the graph that are parameters, the parameters' names.
    values : mapping of str to Tensor
        All values that have names in the net: inputs, parameters, what is computed inside, and outputs.
    chosen : mapping of str to Chosen
        Values whose size depends on elements, by their names.
    """

    build: Build
    inputs: Mapping[str, Tensor]
    parameters: Mapping[str, str]
    values: Mapping[str, Tensor]
    chosen: Mapping[str, Chosen] = field(default_factory=dict)


class Net(Protocol):
    """A model that was read and checked."""

    @property
    def kind(self) -> str:
        """What it is, at the beginning of errors, such as ``mxnet``."""

    @property
    def inputs(self) -> tuple[Port, ...]:
        """What a run takes."""

    @property
    def outputs(self) -> tuple[Port, ...]:
        """What a run returns."""

    @property
    def parameters(self) -> Mapping[str, np.ndarray]:
        """The parameters as they are in the file."""

    def lower(self, shapes: Mapping[str, tuple[int, ...]]) -> LoweredNet:
        """Return the net as a graph for the shapes of all inputs."""

    def array(self, parameter: str) -> np.ndarray:
        """Return a parameter in the type in which the graph reads it."""
