"""Lowers what is recorded of an operator or a region to graphs of the core, one for each pass."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from clgraft.core.graph import Graph, Node, Value
from clgraft.core.graph.passes import Image, Preferences
from clgraft.core.planning.precision import FLOAT32
from clgraft.mxnet_ops.engine.arrays import OUT, OUT_GRAD, STATE, Array, Place
from clgraft.mxnet_ops.engine.recording import Function, Recorded, record

KEPT = 6  # the group of values that the forward saves for the backward of the same forward


@dataclass
class LoweredPass:
    """A pass as a graph.

    Attributes
    ----------
    graph : Graph
    bound : dict of str to (int, int)
        The array that each input, state and output stands for: a group of MXNet's with the place in it; STATE with
        the number of a key of random numbers; KEPT for what lives from forward to backward.
    constants : dict of str to numpy array
        Inputs that never change.
    zeros : tuple of int
        Arguments whose gradients are zero.
    precision : str
        What the graph is to be compiled with.
    """

    graph: Graph
    bound: dict[str, Place]
    constants: dict[str, np.ndarray]
    zeros: tuple[int, ...] = ()
    precision: str = FLOAT32

    @property
    def kept(self) -> tuple[str, ...]:
        """Names of the values that the forward saves."""
        return tuple(name for name, (group, _) in self.bound.items() if group == KEPT)


class Lowering:
    """An operator or a region for given shapes.

    Parameters
    ----------
    function, inputs, states, keys : callable, tuple of (shape, dtype), tuple of (shape, dtype), int
        As `record` takes them.
    heads : int
        Outputs that are arrays of MXNet's: those after them are none.
    learns : bool
        Whether there is a backward pass.
    mixed : str, optional
        The type of 16 bits that products of float32 have. When training, values that live from forward to backward
        have it, too, so both passes are mixed here and together.

    Attributes
    ----------
    joins : bool
        Whether graph passes that have to see forward and backward run on both when training; single operators run node
        by node.
    kept : tuple of str
        Values that live from forward to backward.
    taken, tokens : int
        Inputs that are arrays of MXNet's, and arrays after them that nothing reads.
    """

    joins: ClassVar[bool] = False

    def __init__(
        self,
        function: Function,
        inputs: tuple[Array, ...],
        states: tuple[Array, ...],
        keys: int,
        heads: int,
        *,
        learns: bool = True,
        mixed: str | None = None,
    ) -> None:
        self._function, self._inputs, self._states, self._keys = function, inputs, states, keys
        self._heads, self._learns, self.mixed = heads, learns, mixed
        self.taken, self.tokens = len(inputs), 0
        self._recorded: dict[bool, Recorded] = {}
        self._forward: dict[bool, LoweredPass] = {}
        self.kept: tuple[str, ...] = ()
        if learns:
            self.kept = self.backward(True, range(len(inputs))).kept

    def nbytes(self, place: int) -> int:
        """Return the bytes of an input."""
        return Value("", *self._inputs[place]).nbytes

    def forward(self, train: bool) -> LoweredPass:
        """Return the forward pass; when training, the values that backward reads are outputs too."""
        if train not in self._forward:
            recorded = self._record(train)
            heads = [tensor.name for tensor in recorded.passes.outputs[: self._heads]]
            outputs = [*heads, *(self.kept if train else ())]
            self._forward[train] = self._lowered(train, recorded, recorded.passes.forward, outputs)
        return self._forward[train]

    def backward(self, train: bool, wanted: Collection[int]) -> LoweredPass:
        """Return the backward pass of a forward pass, for the gradients of the wanted arguments.

        The backward of a forward that did not train computes that forward again: it saved nothing.
        """
        recorded = self._record(train)
        passes = recorded.passes
        names = {recorded.inputs[place].name: place for place in sorted(wanted)}
        nodes = passes.leading_to(names)
        outputs = [passes.found[name] for name in names if passes.found[name]]
        zeros = tuple(place for name, place in names.items() if not passes.found[name])
        return self._lowered(train, recorded, nodes if train else (*passes.forward, *nodes), outputs, zeros)

    def settled(self, preferences: Preferences | None) -> dict[str, Image]:
        """Return the values that live from forward to backward in channels last, as a device prefers."""
        return self._record(True).passes.settled(self.kept, preferences)

    def _record(self, train: bool) -> Recorded:
        if train not in self._recorded:
            arrays = self._inputs, self._states
            recorded = record(self._function, *arrays, self._keys, training=train, learns=self._learns)
            if train and self.mixed:
                recorded = recorded._replace(passes=recorded.passes.mixed(self.mixed))
            if train and self._learns and self.joins:
                recorded = recorded._replace(passes=recorded.passes.joined())
            self._recorded[train] = recorded
        return self._recorded[train]

    def _lowered(
        self,
        train: bool,
        recorded: Recorded,
        nodes: Sequence[Node],
        outputs: Sequence[str],
        zeros: tuple[int, ...] = (),
    ) -> LoweredPass:
        """Return nodes as a pass: what they read of other nodes comes from arrays."""
        graph = recorded.passes.graph(nodes, outputs)
        given = {value.name for value in graph.inputs}
        constants = {name: array for name, array in recorded.constants.items() if name in given}
        places = self._places(recorded)
        names = (*(value.name for value in (*graph.inputs, *graph.states)), *outputs)
        bound = {name: places.get(name, (KEPT, 0)) for name in names if name not in constants}
        precision = FLOAT32 if train or self.mixed is None else self.mixed
        return LoweredPass(graph, bound, constants, zeros, precision)

    def _places(self, recorded: Recorded) -> Mapping[str, Any]:
        """Return the arrays of values that are not kept."""
        found = {
            name: (group, place)
            for name, (group, place) in recorded.places().items()
            if group not in (OUT, OUT_GRAD) or place < self._heads
        }
        found.update({tensor.name: (STATE, place) for place, tensor in enumerate(recorded.keys)})
        return found
