"""Writes down what an operator builds: its passes as calls, with an array for every value."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Union

from clgraft.core.graph import Node
from clgraft.core.graph.structure import SKIPPED
from clgraft.core.nn.builder import Build, Passes, Tensor
from clgraft.core.operators.dropout.problem import KEY_WORDS
from clgraft.core.problem import Argument
from clgraft.mxnet_ops.engine.operator_calls import (
    AUX,
    IN,
    IN_GRAD,
    OUT,
    OUT_GRAD,
    STATE,
    Draw,
    OperatorCall,
    OperatorCalls,
    Shape,
)

Place = tuple[int, int]
Function = Callable[..., Union[Tensor, "tuple[Tensor, ...]"]]


@lru_cache(maxsize=4096)
def recorded_calls(
    function: Function,
    arguments: tuple[str, ...],
    shapes: tuple[Shape, ...],
    dtypes: tuple[str, ...],
    auxiliary: tuple[str, ...],
    states: tuple[Shape, ...],
    state_dtypes: tuple[str, ...],
    draw: Draw | None = None,
) -> OperatorCalls:
    """Return what an operator does for given shapes.

    Parameters
    ----------
    function : callable
        Gets a builder, the inputs, the auxiliary states, and with `draw` a key; returns the outputs.
    arguments, auxiliary : tuple of str
    shapes, states : tuple of tuple of int
        Of the inputs and of the auxiliary states.
    dtypes, state_dtypes : tuple of str
    draw : Draw, optional
        Of an operator with random numbers.
    """
    memory = _Memory()
    if draw is not None:
        memory.number("key", (KEY_WORDS,), "int32", 0.0)
    forward: dict[bool, tuple[OperatorCall, ...]] = {}
    backward: dict[bool, tuple[OperatorCall, ...]] = {}
    missing: set[int] = set()
    for training in (False, True):
        build = Build(training=training)
        inputs = [build.input(*one) for one in zip(arguments, shapes, dtypes)]
        aux = [build.state(*one) for one in zip(auxiliary, states, state_dtypes)]
        key = () if draw is None else (build.input("key", (KEY_WORDS,), "int32"),)
        made = function(build, *inputs, *aux, *key)
        outputs = made if isinstance(made, tuple) else (made,)
        passes = build.passes(outputs, [tensor.name for tensor in inputs])
        places = memory.places(build, passes, inputs, aux)
        forward[training] = tuple(memory.call(node, places) for node in passes.forward)
        backward[training] = tuple(memory.call(node, places) for node in passes.backward)
        missing = {place for place, tensor in enumerate(inputs) if not passes.found[tensor.name]}
    nbytes = [Argument(name, "in", shape, kind).nbytes for name, shape, kind in zip(arguments, shapes, dtypes)]
    zeros = tuple((place, nbytes[place]) for place in sorted(missing))
    return OperatorCalls(forward, backward, tuple(memory.state), zeros, draw)


@dataclass
class _Memory:
    """The operator's own arrays; passes that train and passes that do not share them."""

    state: list[tuple[Shape, str, float]] = field(default_factory=list)
    own: dict[tuple[str, Shape, str], int] = field(default_factory=dict)  # a value -> its array

    def places(
        self, build: Build, passes: Passes, inputs: Sequence[Tensor], auxiliary: Sequence[Tensor]
    ) -> dict[str, Place]:
        """Return where values are that are not the operator's own."""
        found: dict[str, Place] = {tensor.name: (IN, place) for place, tensor in enumerate(inputs)}
        found.update({tensor.name: (AUX, place) for place, tensor in enumerate(auxiliary)})
        for place, tensor in enumerate(passes.outputs):
            found[tensor.name] = (OUT, place)
            if tensor.name in passes.incoming:
                found[passes.incoming[tensor.name].name] = (OUT_GRAD, place)
        for place, tensor in enumerate(inputs):
            if passes.found[tensor.name]:
                found[passes.found[tensor.name]] = (IN_GRAD, place)
        for name, array in build.constants.items():
            fill = float(array.flat[0]) if array.size else 0.0
            found[name] = STATE, self.number(f"{name} {fill!r}", array.shape, str(array.dtype), fill)
        return found

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
