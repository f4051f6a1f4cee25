"""Records problems that operators would run one by one on memory, and lowers what was recorded to graphs.

A `Recorder` stands in for a context: `plan` returns something whose `execute` writes down a `Call`. Memory is known by
its address alone, so whatever names addresses can record. Calls that follow each other on the same memory become
values of a graph: each write of an address is a new value, each read is that of the last write.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from clgraft.core.errors import ProblemError
from clgraft.core.graph.graph import Graph
from clgraft.core.graph.identity import identity
from clgraft.core.graph.passes.autocast import mix_passes, mix_types, wide_name
from clgraft.core.graph.passes.dead import drop_dead
from clgraft.core.graph.structure import SKIPPED, Node, Number, Value
from clgraft.core.operators.pointwise import PointwiseProblem
from clgraft.core.planning.precision import FLOAT32
from clgraft.core.problem import Argument, Problem, parse
from clgraft.core.runtime.plan import ACCUMULATE, SKIP, BoundBuffer

COPY = "kept."  # what the names of copies for the backward pass begin with


@dataclass(frozen=True, eq=False)
class DeferredScalar:
    """A scalar that is known only when a run starts: `value` is called for it in every run."""

    value: Callable[[], float]


@dataclass(frozen=True)
class Call:
    """A problem that an operator wants to run on some memory.

    Attributes
    ----------
    problem : Problem
    buffers : tuple of BoundBuffer
        In the order of the problem's arguments.
    scalars : tuple of float or DeferredScalar
        In the order of the problem's scalars.
    """

    problem: Problem
    buffers: tuple[BoundBuffer, ...]
    scalars: tuple[float | DeferredScalar, ...] = ()


class RecordedPlan:
    """What a recorder returns instead of a plan."""

    def __init__(self, recorder: Recorder, problem: Problem) -> None:
        self._recorder, self.problem = recorder, problem
        self.arguments, self.scalars = problem.arguments(), problem.scalars()

    def execute(self, buffers: Sequence[BoundBuffer], scalars: Sequence[float | DeferredScalar] = ()) -> None:
        """Write the call down."""
        for given, expected, what in ((buffers, self.arguments, "buffers"), (scalars, self.scalars, "scalars")):
            if len(given) != len(expected):
                raise ProblemError(f"[graph] got {len(given)} {what} for {self.problem}, expected {len(expected)}")
        self._recorder.calls.append(Call(self.problem, tuple(buffers), tuple(scalars)))


class Recorder:
    """Stands in for a context while operators record themselves.

    Attributes
    ----------
    calls : list of Call
        What was recorded since the last `take`.
    """

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def plan(self, problem: Problem | str) -> RecordedPlan:
        """Return a plan that records."""
        return RecordedPlan(self, parse(problem) if isinstance(problem, str) else problem)

    def add(self, parts: Sequence[BoundBuffer], total: BoundBuffer, size: int) -> None:
        """Record the sum of buffers of `size` elements, from left to right."""
        self.plan(PointwiseProblem.sum_of((size,), len(parts), total.dtype)).execute((*parts, total))

    def take(self) -> tuple[Call, ...]:
        """Return the calls, and start anew."""
        calls, self.calls = tuple(self.calls), []
        return calls


@dataclass(frozen=True)
class Lowered:
    """A recorded pass as a graph.

    Attributes
    ----------
    graph : Graph
    bound : mapping of str to int
        The address that each input, state and output stands for, but for the kept ones.
    kept : tuple of str
        Values that live from forward to backward: outputs of the forward pass, inputs of the backward pass.
    added : frozenset of str
        Outputs that are added to what their memory holds.
    scalars : mapping of str to DeferredScalar
    precision : str
        What the graph is to be compiled with.
    """

    graph: Graph
    bound: Mapping[str, int]
    kept: tuple[str, ...]
    added: frozenset[str]
    scalars: Mapping[str, DeferredScalar]
    precision: str = FLOAT32


class Recording:
    """The forward pass of some operators, and the backward passes that belong to it.

    Parameters
    ----------
    forward : sequence of Call
    results : collection of int
        Addresses that hold results when the forward pass has run. Other memory that it writes need not exist.
    changing : collection of int, optional
        Addresses of results, or of memory that the forward pass reads, whose content may be lost before the backward
        pass: what it needs of them is copied.
    mixed : str, optional
        The type of 16 bits that products of float32 have. Passes that share values are mixed together, so that these
        have it, too; others are to be compiled with it.
    """

    def __init__(
        self,
        forward: Sequence[Call],
        results: Collection[int],
        changing: Collection[int] = (),
        mixed: str | None = None,
    ) -> None:
        self.results, self.changing, self.mixed = frozenset(results), frozenset(changing), mixed
        self._tape = _Tape("v")
        for call in forward:
            self._tape.add(call)

    def forward(self, kept: Sequence[str] = ()) -> Lowered:
        """Return the forward pass, which also hands out the values that a backward pass needs."""
        tape = self._tape
        outputs = {tape.at[address]: address for address in sorted(self.results) if address in tape.at}
        if self.mixed is None or not kept:
            lowered = tape.lowered(self._with_copies(kept), outputs, kept)
            return replace(lowered, precision=self.mixed or FLOAT32)
        wide = {name: wide_name(name, self.mixed) for name in kept}
        lowered = tape.lowered(self._with_copies(wide.values()), outputs, ())
        made = lowered.graph.values
        alone = [name for name in kept if name in made]
        graph = mix_types(lowered.graph.with_outputs(dict.fromkeys((*outputs, *alone))), self.mixed, kept)
        graph = drop_dead(graph.with_outputs(dict.fromkeys((*outputs, *kept))))
        return replace(lowered, graph=graph, kept=tuple(kept))

    def _with_copies(self, kept: Iterable[str]) -> list[Node]:
        """Return the nodes of the forward pass, and those that copy what a backward pass reads."""
        tape = self._tape
        nodes = list(tape.nodes)
        for name in dict.fromkeys(kept):
            if name.startswith(COPY):
                source = name[len(COPY) :]
                value = tape.value(source)
                nodes.append(Node(identity(value), (source, name)))
        return nodes

    def backward(
        self, calls: Sequence[Call], outputs: Collection[int], *, again: bool = False, only: Collection[int] = ()
    ) -> Lowered:
        """Return a backward pass.

        Parameters
        ----------
        calls : sequence of Call
        outputs : collection of int
            Addresses that it writes, other than those that it adds to.
        again : bool
            Compute the forward pass again instead of reading what it kept; states stay as they are.
        only : collection of int, optional
            The addresses, written or added to, that are wanted of the outputs; all by default.
        """
        tape = _Tape("g")
        if again:
            tape.go_on(self._tape)
        else:
            tape.reads_of(self._tape, self._kept_name)
        for call in calls:
            tape.add(call)
        bound = {tape.at[address]: address for address in sorted(outputs) if address in tape.at}
        added = {tape.total(address): address for address in sorted(tape.added)}
        bound.update(added)
        if only:
            bound = {name: address for name, address in bound.items() if address in set(only)}
        lowered = tape.lowered(tape.nodes, bound, tuple(tape.kept), frozenset(added) & frozenset(bound))
        if again:
            lowered = replace(lowered, precision=self.mixed or FLOAT32)
        elif self.mixed is not None:
            lowered = self._mixed(lowered, self.mixed)
        if not (only or again or self.mixed):
            return lowered
        graph = drop_dead(lowered.graph)
        read = {name for node in graph.nodes for name in node.reads}
        used = {number for node in graph.nodes for number in node.scalars if isinstance(number, str)}
        graph = Graph(
            graph.nodes,
            tuple(value for value in graph.inputs if value.name in read),
            graph.outputs,
            () if only or again else graph.states,
            tuple(name for name in graph.scalars if name in used),
        )
        known = {value.name for value in (*graph.inputs, *graph.states)} | set(graph.outputs)
        return Lowered(
            graph,
            {name: address for name, address in lowered.bound.items() if name in known},
            tuple(name for name in lowered.kept if name in known),
            lowered.added,
            {name: scalar for name, scalar in lowered.scalars.items() if name in used},
            lowered.precision,
        )

    def _mixed(self, lowered: Lowered, dtype: str) -> Lowered:
        """Return a backward pass in two types, which reads what the forward pass has in 16 bits as it is."""
        nodes = self._with_copies(lowered.kept)
        forward, graph = self._tape, lowered.graph
        made = {name for node in nodes for name in node.writes}
        given = [*forward.inputs.values(), *(value for value in graph.inputs if value.name not in made)]
        states = (*forward.states.values(), *graph.states)
        known = {value.name for value in states}
        both = Graph(
            (*nodes, *graph.nodes),
            tuple({value.name: value for value in given if value.name not in known}.values()),
            graph.outputs,
            tuple({value.name: value for value in states}.values()),
            tuple(dict.fromkeys((*forward.scalars, *graph.scalars))),
        )
        _, late = mix_passes(both, dtype, len(nodes))
        values = mix_types(both, dtype).values
        written = {name for node in late for name in node.writes}
        read = dict.fromkeys(name for node in late for name in node.reads)
        changed = {name for node in late for name in node.changes}
        inputs = [values[name] for name in read if name not in written and name not in changed]
        found = Graph(late, tuple(inputs), graph.outputs, tuple(values[name] for name in changed), graph.scalars)
        kept = tuple(value.name for value in inputs if value.name not in lowered.bound)
        return replace(lowered, graph=found, kept=kept)

    def _kept_name(self, address: int) -> tuple[str, bool]:
        """Return the value at an address when the forward pass has run, and whether it has to be kept."""
        tape = self._tape
        if address in self.changing and (address in tape.at or address in tape.inputs):
            return COPY + (tape.at.get(address) or tape.inputs[address].name), True
        if address in tape.at:
            return tape.at[address], address not in self.results
        return "", False


@dataclass
class _Tape:
    """Calls of a pass as nodes, with the value that each address holds."""

    prefix: str
    nodes: list[Node] = field(default_factory=list)
    inputs: dict[int, Value] = field(default_factory=dict)
    states: dict[int, Value] = field(default_factory=dict)
    at: dict[int, str] = field(default_factory=dict)  # address -> the value that was last written to it
    added: dict[int, list[str]] = field(default_factory=dict)  # address -> what is to be added to it
    made: dict[str, Value] = field(default_factory=dict)
    kept: dict[str, Value] = field(default_factory=dict)
    scalars: dict[str, DeferredScalar] = field(default_factory=dict)
    _before: Any = None
    _count: int = 0

    def go_on(self, before: _Tape) -> None:
        """Start with the nodes of another tape, but leave states alone."""
        self.nodes = [node for node in before.nodes if not node.changes]
        self.inputs = {**before.inputs, **before.states}
        self.at, self.made, self.scalars = dict(before.at), dict(before.made), dict(before.scalars)

    def reads_of(self, before: _Tape, name_of: Callable[[int], tuple[str, bool]]) -> None:
        """Read what another tape has left."""
        self._before = before, name_of

    def add(self, call: Call) -> None:
        """Add a call."""
        names, written = [], []
        for argument, buffer in zip(call.problem.arguments(), call.buffers):
            if argument.role == "in":
                names.append(self._read(buffer.address, argument))
            elif argument.role == "inout":
                names.append(self._state(buffer.address, argument))
            elif buffer.mode == SKIP:
                names.append(SKIPPED)
            else:
                names.append(self._define(argument.shape, argument.dtype))
                written.append((buffer, names[-1]))
        self.nodes.append(Node(call.problem, tuple(names), tuple(self._number(scalar) for scalar in call.scalars)))
        for buffer, name in written:
            if buffer.mode == ACCUMULATE:
                self.added.setdefault(buffer.address, []).append(name)
            else:
                self.at[buffer.address] = name

    def total(self, address: int) -> str:
        """Return all that is added to an address as one value."""
        parts = self.added[address]
        if len(parts) > 1:
            value = self.made[parts[0]]
            size = (math.prod(value.shape),)
            name = self._define(value.shape, value.dtype)
            problem = PointwiseProblem.sum_of(size, len(parts), value.dtype)
            self.nodes.append(Node(problem, (*parts, name)))
            self.added[address] = parts = [name]
        return parts[0]

    def value(self, name: str) -> Value:
        """Return a value by its name."""
        given = {value.name: value for value in (*self.inputs.values(), *self.states.values())}
        return self.made[name] if name in self.made else given[name]

    def lowered(
        self,
        nodes: Sequence[Node],
        outputs: Mapping[str, int],
        kept: Sequence[str],
        added: frozenset[str] = frozenset(),
    ) -> Lowered:
        """Return the pass; kept values are outputs of a forward pass, and inputs of a backward one."""
        wanted = dict.fromkeys(outputs)
        inputs = [*self.inputs.values(), *self.kept.values()]
        if self._before is None:
            wanted.update(dict.fromkeys(kept))
        states = tuple(self.states.values())
        graph = Graph(tuple(nodes), tuple(inputs), tuple(wanted), states, tuple(self.scalars))
        bound = {value.name: address for address, value in (*self.inputs.items(), *self.states.items())}
        bound.update(outputs)
        return Lowered(graph, bound, tuple(kept), added, dict(self.scalars))

    def _number(self, scalar: float | DeferredScalar) -> Number:
        if not isinstance(scalar, DeferredScalar):
            return float(scalar)
        for name, known in self.scalars.items():
            if known is scalar:
                return name
        name = f"{self.prefix}s{len(self.scalars) + 1}"
        self.scalars[name] = scalar
        return name

    def _define(self, shape: tuple[int, ...], dtype: str) -> str:
        self._count += 1
        name = f"{self.prefix}{self._count}"
        self.made[name] = Value(name, tuple(shape), dtype)
        return name

    def _read(self, address: int, argument: Argument) -> str:
        if address in self.added:
            raise ProblemError(
                f"[graph] got {argument.name}, which was only added to, expected memory that was written"
            )
        if address in self.at:
            return self.at[address]
        if address in self.states:
            return self.states[address].name
        if address in self.inputs:
            return self.inputs[address].name
        if self._before is not None:
            before, name_of = self._before
            name, is_kept = name_of(address)
            if name:
                source = before.value(name[len(COPY) :] if name.startswith(COPY) else name)
                value = Value(name, source.shape, source.dtype)
                if is_kept:
                    self.kept[name] = value
                    self.at[address] = name
                    return name
                self.inputs[address] = value
                return name
            known = before.inputs.get(address) or before.states.get(address)
            if known is not None:
                self.inputs[address] = known
                return str(known.name)
        name = f"{'in' if self._before is None else 'grad'}{len(self.inputs) + len(self.states) + 1}"
        self.inputs[address] = Value(name, tuple(argument.shape), argument.dtype)
        return name

    def _state(self, address: int, argument: Argument) -> str:
        if address in self.at:
            raise ProblemError(f"[graph] got a value for the state {argument.name}, expected memory that nothing wrote")
        if address not in self.states:
            known = self.inputs.pop(address, None)
            name = known.name if known else f"state{len(self.inputs) + len(self.states) + 1}"
            self.states[address] = Value(name, tuple(argument.shape), argument.dtype)
        return self.states[address].name
