"""Lowers regions to graphs of the core, from the calls that their operators make one by one."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from clgraft.core import PointwiseProblem, ProblemError
from clgraft.core.graph import Graph, Node, Value
from clgraft.core.graph.structure import SKIPPED
from clgraft.mxnet_ops.engine.operator import (
    AUX,
    IN,
    IN_GRAD,
    OUT,
    OUT_GRAD,
    STATE,
    OperatorCall,
    OperatorCalls,
    Shape,
    data_dtype,
    parameter_dtype,
)
from clgraft.mxnet_ops.regions.region import OUTSIDE, Entry, RegionOperator

KEPT = 6  # the group of values that the forward saves for the backward of the same forward
Place = tuple[int, int]


@dataclass
class LoweredPass:
    """A pass over a region as a graph.

    Attributes
    ----------
    graph : Graph
    bound : dict of str to (int, int)
        The array that each input, state and output stands for: a group of MXNet's with the place in it; STATE with
        the part whose key of random numbers it is; KEPT for what lives from forward to backward.
    constants : dict of str to numpy array
        Inputs that never change.
    zeros : tuple of int
        Arguments whose gradients are zero.
    """

    graph: Graph
    bound: dict[str, Place]
    constants: dict[str, np.ndarray]
    zeros: tuple[int, ...] = ()

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
    """

    def __init__(self, region: RegionOperator, shapes: tuple[Shape, ...], dtype: str) -> None:
        self.region, self.dtype = region, dtype
        self.shapes, _ = region.infer_all(shapes)
        self.part_calls: list[OperatorCalls] = region.part_calls(shapes, dtype)
        self.kept: tuple[str, ...] = ()
        if region.number is None:  # those with constants infer only
            self._training = self._forward(True)
            everything = frozenset(range(len(region.names)))
            self.kept = self.backward(True, everything).kept

    def dtype_of(self, entry: Entry) -> str:
        """Return the dtype of an argument, or of a value."""
        entries, _ = self.region.singles
        return parameter_dtype(self.dtype) if entry in entries else data_dtype(self.dtype)

    def forward(self, train: bool) -> LoweredPass:
        """Return the forward pass; when training, the values that backward reads are outputs too."""
        writer = self._training if train else self._forward(False)
        heads = [writer.values[entry] for entry in self.region.heads]
        bound = {name: (OUT, place) for place, name in enumerate(heads)}
        if train:
            bound.update({name: (KEPT, 0) for name in self.kept})
        return writer.lowered(bound)

    def backward(self, train: bool, wanted: Collection[int]) -> LoweredPass:
        """Return the backward pass of a forward pass, for the gradients of the wanted arguments.

        The backward of a forward that did not train computes that forward again: it saved nothing.
        """
        forward = self._training if train else self._forward(False)
        writer = _PassWriter(self, forward, separate=train)
        active: list[bool] = []
        for part in self.region.parts:
            active.append(any(o in wanted if n == OUTSIDE else active[n] for n, o in part.inputs))
        needed = {(OUTSIDE, place) for place in wanted}
        needed |= {
            (number, place)
            for number, part in enumerate(self.region.parts)
            if active[number]
            for place in range(len(part.operator.outputs))
        }
        for number in reversed(range(len(self.region.parts))):
            if active[number] and (number, 0) not in self.region.copied:
                for call in self.part_calls[number].backward[train]:
                    writer.add(number, call, needed)
        bound: dict[str, Place] = {}
        zeros = []
        for place in sorted(wanted):
            name = writer.sum((OUTSIDE, place))
            if name:
                bound[name] = (IN_GRAD, place)
            else:
                zeros.append(place)
        return writer.lowered(bound, tuple(zeros))

    def _forward(self, train: bool) -> _PassWriter:
        writer = _PassWriter(self)
        for number, calls in enumerate(self.part_calls):
            for call in () if (number, 0) in self.region.copied else calls.forward[train]:
                writer.add(number, call, ())
        return writer


@dataclass
class _PassWriter:
    """Collects the nodes of a pass and names the values that they share.

    With a `forward` pass in front its values are known: if the passes are `separate`, they come from arrays.
    """

    lowering: RegionLowering
    forward: _PassWriter | None = None
    separate: bool = False
    nodes: list[Node] = field(default_factory=list)
    inputs: dict[str, Value] = field(default_factory=dict)
    states: dict[str, Value] = field(default_factory=dict)
    bound: dict[str, Place] = field(default_factory=dict)
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    values: dict[Entry, str] = field(default_factory=dict)
    own: dict[Entry, str] = field(default_factory=dict)  # a part's state -> the value that it holds now
    made: dict[str, Value] = field(default_factory=dict)
    parts: dict[Entry, list[str]] = field(default_factory=dict)  # a value -> the parts of its gradient

    def __post_init__(self) -> None:
        self.prefix = "v" if self.forward is None else "g"
        if self.forward is not None:
            self.values, self.own = dict(self.forward.values), dict(self.forward.own)
            if not self.separate:
                for name in ("inputs", "states", "bound", "constants", "made"):
                    setattr(self, name, dict(getattr(self.forward, name)))
                self.nodes = list(self.forward.nodes)

    def add(self, number: int, call: OperatorCall, needed: Collection[Entry]) -> None:
        """Add a call of a part; gradients other than the needed ones are left out."""
        arguments = call.problem.arguments()
        region = self.lowering.region
        source = [region.copied.get(entry, entry) for entry in region.parts[number].inputs]

        def is_wanted(role: str, array: Place | None) -> bool:
            if role == "in" or array is None:
                return False
            return array[0] != IN_GRAD or source[array[1]] in needed

        if not any(is_wanted(argument.role, array) for argument, array in zip(arguments, call.arrays)):
            return
        names, written = [], []
        for argument, array in zip(arguments, call.arrays):
            if argument.role != "out":
                if array is None or (argument.role == "inout" and array[0] != AUX):
                    expected = f"an array for {argument.name} of {call.problem}"
                    raise ProblemError(f"[ocl_region] got {array}, expected {expected}")
                names.append(self._read(number, array, argument.shape, argument.dtype, argument.role == "inout"))
            elif array is None or not is_wanted("out", array):
                names.append(SKIPPED)
            else:
                names.append(self._define(argument.shape, argument.dtype))
                written.append((array, names[-1]))
        self.nodes.append(Node(call.problem, tuple(names), tuple(call.scalars)))
        for (group, place), name in written:
            if group == OUT:
                self.values[number, place] = name
            elif group == STATE:
                self.own[number, place] = name
            else:
                self.parts.setdefault(source[place], []).append(name)

    def _define(self, shape: Shape, dtype: str) -> str:
        name = f"{self.prefix}{len(self.made) + 1}"
        self.made[name] = Value(name, shape, dtype)
        return name

    def _input(self, name: str, shape: Shape, dtype: str, place: Place | None) -> str:
        if name not in self.inputs:
            self.inputs[name] = Value(name, shape, dtype)
            if place is not None:
                self.bound[name] = place
        return name

    def _constant(self, name: str, shape: Shape, dtype: str, fill: float) -> str:
        self._input(name, shape, dtype, None)
        self.constants.setdefault(name, np.full(shape, fill, dtype))
        return name

    def _read(self, number: int, array: Place, shape: Shape, dtype: str, changed: bool) -> str:
        (group, place), part = array, self.lowering.region.parts[number]
        if group in (IN, OUT):
            entry = part.inputs[place] if group == IN else (number, place)
            entry = self.lowering.region.copied.get(entry, entry)
            if entry[0] != OUTSIDE:
                return self._value(entry)
            return self._input(f"in{entry[1]}", shape, dtype, (IN, entry[1]))
        if group == AUX:
            return self._auxiliary(part.auxiliary[place], shape, dtype, changed)
        if group == OUT_GRAD:
            return self._incoming((number, place))
        return self._state(number, place, shape, dtype)

    def _value(self, entry: Entry) -> str:
        """Return a value that an operator computed."""
        name, heads = self.values[entry], self.lowering.region.heads
        if name in self.made:
            return name
        assert self.forward is not None
        value = self.forward.made[name]
        place = (OUT, heads.index(entry)) if entry in heads else (KEPT, 0)
        return self._input(name, value.shape, value.dtype, place)

    def _auxiliary(self, place: int, shape: Shape, dtype: str, changed: bool) -> str:
        name = f"aux{place}"
        if changed and name not in self.states:
            self.inputs.pop(name, None)
            self.states[name] = Value(name, shape, dtype)
        if name not in self.states:
            return self._input(name, shape, dtype, (AUX, place))
        self.bound[name] = (AUX, place)
        return name

    def _state(self, number: int, place: int, shape: Shape, dtype: str) -> str:
        """Return what an array of the operator's own holds: a value that was written before, or its first content."""
        name = self.own.get((number, place))
        if name is not None:
            if name not in self.made:
                assert self.forward is not None
                value = self.forward.made[name]
                self._input(name, value.shape, value.dtype, (KEPT, 0))
            return name
        calls = self.lowering.part_calls[number]
        if calls.draw is not None and calls.draw.place == place:
            return self._input(f"key{number}", shape, dtype, (STATE, number))
        return self._constant(f"state{number}.{place}", shape, dtype, calls.state[place][2])

    def _incoming(self, entry: Entry) -> str:
        """Return the gradient of an operator's output."""
        heads = self.lowering.region.heads
        shape = self.lowering.shapes[entry]
        if entry in heads:
            place = heads.index(entry)
            name = f"head{place}"
            if name not in self.inputs:
                self._input(name, shape, self.lowering.dtype_of(entry), (OUT_GRAD, place))
                self.parts.setdefault(entry, []).insert(0, name)
        found = self.sum(entry)
        return found or self._constant(f"zero{entry[0]}.{entry[1]}", shape, self.lowering.dtype_of(entry), 0.0)

    def sum(self, entry: Entry) -> str:
        """Return the gradient of a value as one value; empty if it has none."""
        parts = self.parts.get(entry, [])
        if len(parts) > 1:
            shape = self.lowering.shapes[entry] or (1,)
            dtype = self.lowering.dtype_of(entry)
            problem = PointwiseProblem.sum_of(shape, len(parts), dtype)
            name = self._define(shape, dtype)
            self.nodes.append(Node(problem, (*parts, name)))
            self.parts[entry] = parts = [name]
        return parts[0] if parts else ""

    def lowered(self, outputs: dict[str, Place], zeros: tuple[int, ...] = ()) -> LoweredPass:
        """Return the pass with these outputs."""
        graph = Graph(tuple(self.nodes), tuple(self.inputs.values()), tuple(outputs), tuple(self.states.values()))
        return LoweredPass(graph, {**self.bound, **outputs}, dict(self.constants), zeros)
