"""Lowers regions to graphs of the core: what is recorded of a region is a graph for each pass."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from clgraft.core.graph import Graph, Node
from clgraft.core.planning.precision import FLOAT32
from clgraft.mxnet_ops.engine.operator import AUX, IN, OUT, OUT_GRAD, STATE, Shape, data_dtype, parameter_dtype
from clgraft.mxnet_ops.engine.operator_calls import Place
from clgraft.mxnet_ops.engine.recording import Recorded, record
from clgraft.mxnet_ops.regions.region import OUTSIDE, Entry, RegionOperator

KEPT = 6  # the group of values that the forward saves for the backward of the same forward


@dataclass
class LoweredPass:
    """A pass over a region as a graph.

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

    def named(self, region: RegionOperator, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """Return arrays that are known by the names of a region's variables by those of the graph's inputs."""
        variables = {IN: region.names, AUX: region.auxiliary_names}
        found = {}
        for value in self.graph.inputs:
            group, place = self.bound.get(value.name, (KEPT, 0))
            if group in variables and variables[group][place] in arrays:
                found[value.name] = arrays[variables[group][place]]
        return found


class RegionLowering:
    """A region for given shapes.

    Parameters
    ----------
    region : RegionOperator
    shapes : tuple of tuple of int
        Of the region's arguments.
    dtype : str
        Of the data, or `MIXED`.
    mixed : str, optional
        The type of 16 bits that products of float32 have. When training, values that live from forward to backward
        have it, too, so both passes are mixed here and together.
    """

    def __init__(self, region: RegionOperator, shapes: tuple[Shape, ...], dtype: str, mixed: str | None = None) -> None:
        self.region, self.dtype = region, dtype
        self.mixed = mixed if dtype == FLOAT32 else None
        self.shapes, self._states = region.infer_all(shapes)
        self._recorded: dict[bool, Recorded] = {}
        self._forward: dict[bool, LoweredPass] = {}
        self.kept: tuple[str, ...] = ()
        if region.number is None:  # those with constants infer only
            self.kept = self.backward(True, range(len(region.names))).kept

    def dtype_of(self, entry: Entry) -> str:
        """Return the dtype of an argument, or of a value."""
        return self._dtype_if(entry in self.region.singles[0])

    def _dtype_if(self, single: bool) -> str:
        return parameter_dtype(self.dtype) if single else data_dtype(self.dtype)

    def forward(self, train: bool) -> LoweredPass:
        """Return the forward pass; when training, the values that backward reads are outputs too."""
        if train not in self._forward:
            recorded = self._record(train)
            heads = [tensor.name for tensor in recorded.passes.outputs[: len(self.region.heads)]]
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

    def _record(self, train: bool) -> Recorded:
        singles = self.region.singles[1]
        if train not in self._recorded:
            recorded = record(
                self.region.build,
                tuple((self.shapes[OUTSIDE, p], self.dtype_of((OUTSIDE, p))) for p in range(len(self.region.names))),
                tuple((shape, self._dtype_if(place in singles)) for place, shape in sorted(self._states.items())),
                len(self.region.draws),
                training=train,
                learns=self.region.number is None,
            )
            if train and self.mixed:
                recorded = recorded._replace(passes=recorded.passes.mixed(self.mixed))
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

    def _places(self, recorded: Recorded) -> dict[str, Place]:
        """Return the arrays of values that are not kept."""
        count = len(self.region.heads)  # outputs after those are no arrays of MXNet's
        found = {
            name: (group, place)
            for name, (group, place) in recorded.places().items()
            if group not in (OUT, OUT_GRAD) or place < count
        }
        found.update({tensor.name: (STATE, place) for place, tensor in enumerate(recorded.keys)})
        return found
