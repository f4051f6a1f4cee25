"""Records what operators and regions build: their passes, and for single operators the calls that C makes for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple, Union

import numpy as np

from clgraft.core.graph import Node
from clgraft.core.graph.structure import SKIPPED
from clgraft.core.nn.builder import Build, Passes, Tensor
from clgraft.core.operators.dropout import KEY_WORDS
from clgraft.core.problem import Argument
from clgraft.mxnet_ops.engine.operator_calls import (
    AUX,
    IN,
    IN_GRAD,
    OUT,
    OUT_GRAD,
    STATE,
    OperatorCall,
    OperatorCalls,
    Place,
    Shape,
)

Array = tuple[Shape, str]  # its dtype comes last
Function = Callable[..., Union[Tensor, "tuple[Tensor, ...]"]]


class Recorded(NamedTuple):
    """The passes of an operator or a region for given shapes.

    Attributes
    ----------
    inputs, auxiliary, keys : tuple of Tensor
        ``in0``, ``in1`` and so on, likewise ``aux`` and ``key``.
    constants : mapping of str to numpy.ndarray
    passes : Passes
    """

    inputs: tuple[Tensor, ...]
    auxiliary: tuple[Tensor, ...]
    keys: tuple[Tensor, ...]
    constants: Mapping[str, np.ndarray]
    passes: Passes

    def places(self) -> dict[str, Place]:
        """Return MXNet's array of each value that has one."""
        found = {tensor.name: (IN, place) for place, tensor in enumerate(self.inputs)}
        found.update({tensor.name: (AUX, place) for place, tensor in enumerate(self.auxiliary)})
        for place, tensor in enumerate(self.passes.outputs):
            found[tensor.name] = (OUT, place)
            if tensor.name in self.passes.incoming:
                found[self.passes.incoming[tensor.name].name] = (OUT_GRAD, place)
        gradients = (self.passes.found.get(tensor.name, "") for tensor in self.inputs)
        found.update({name: (IN_GRAD, place) for place, name in enumerate(gradients) if name})
        return found


def record(
    function: Function,
    inputs: tuple[Array, ...],
    states: tuple[Array, ...],
    keys: int,
    *,
    training: bool,
    learns: bool = True,
) -> Recorded:
    """Return the passes of an operator or a region.

    Parameters
    ----------
    function : callable
        Gets a builder, the inputs, the auxiliary states and the keys of random numbers; returns the outputs.
    inputs, states : tuple of (tuple of int, str)
        Shapes and dtypes of the inputs and of the auxiliary states.
    keys : int
        How many.
    training : bool
    learns : bool
        Whether there is a backward pass, with the gradients of all inputs.
    """
    build = Build(training=training)
    values = tuple(build.input(f"in{place}", *array) for place, array in enumerate(inputs))
    auxiliary = tuple(build.state(f"aux{place}", *array) for place, array in enumerate(states))
    drawn = tuple(build.input(f"key{place}", (KEY_WORDS,), "int32") for place in range(keys))
    made = function(build, *values, *auxiliary, *drawn)
    outputs = made if isinstance(made, tuple) else (made,)
    passes = build.passes(outputs, [tensor.name for tensor in values] if learns else [])
    return Recorded(values, auxiliary, drawn, build.constants, passes)


@lru_cache(maxsize=4096)
def recorded_calls(
    function: Function, inputs: tuple[Array, ...], states: tuple[Array, ...], keys: int
) -> OperatorCalls:
    """Return what an operator does for given shapes (see `record`); its own arrays begin with the keys."""
    memory = _Memory()
    for place in range(keys):
        memory.number(f"key{place}", (KEY_WORDS,), "int32", 0.0)
    forward: dict[bool, tuple[OperatorCall, ...]] = {}
    backward: dict[bool, tuple[OperatorCall, ...]] = {}
    missing: set[int] = set()
    for training in (False, True):
        recorded = record(function, inputs, states, keys, training=training)
        passes, places = recorded.passes, recorded.places()
        for name, array in recorded.constants.items():
            fill = float(array.flat[0]) if array.size else 0.0
            places[name] = STATE, memory.number(f"{name} {fill!r}", array.shape, str(array.dtype), fill)
        forward[training] = tuple(memory.call(node, places) for node in passes.forward)
        backward[training] = tuple(memory.call(node, places) for node in passes.backward)
        missing = {place for place, tensor in enumerate(recorded.inputs) if not passes.found[tensor.name]}
    zeros = tuple((place, Argument("x", "in", *inputs[place]).nbytes) for place in sorted(missing))
    return OperatorCalls(forward, backward, tuple(memory.state), zeros)


@dataclass
class _Memory:
    """The operator's own arrays; passes that train and passes that do not share them."""

    state: list[tuple[Shape, str, float]] = field(default_factory=list)
    own: dict[tuple[str, Shape, str], int] = field(default_factory=dict)  # a value -> its array

    def call(self, node: Node, places: Mapping[str, Place]) -> OperatorCall:
        """Return a node as a call."""
        arrays: list[Place | None] = []
        for argument, name in zip(node.problem.arguments(), node.arguments):
            if name == SKIPPED:
                arrays.append(None)
            elif name in places:
                arrays.append(places[name])
            else:
                arrays.append((STATE, self.number(name, argument.shape, argument.dtype, 0.0)))
        return OperatorCall(node.problem, tuple(arrays), tuple(float(number) for number in node.scalars))

    def number(self, name: str, shape: Shape, dtype: str, fill: float) -> int:
        """Return the number of an array of the operator's own; a value keeps it in both kinds of passes."""
        size = (name, (Argument(name, "in", shape, dtype).size,), dtype)
        if size not in self.own:
            self.own[size] = len(self.state)
            self.state.append((tuple(shape), dtype, fill))
        return self.own[size]
