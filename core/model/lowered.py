"""What a model of any kind gives to its session."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from clgraft.core.model.ports import Port
from clgraft.core.nn.builder import Build, Tensor


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
    finished : mapping of str to callable
        For values by their names, what their arrays become before a user gets them: of those whose size depends on
        elements the graph computes the largest one.
    """

    build: Build
    inputs: Mapping[str, Tensor]
    parameters: Mapping[str, str]
    values: Mapping[str, Tensor]
    finished: Mapping[str, Callable[[np.ndarray], np.ndarray]] = field(default_factory=dict)


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
