"""Graphs prepared for a context: every launch of every node in one plan, with values in one arena."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from clgraft.core.errors import ArgumentError, ProblemError
from clgraft.core.graph.copies import Copies, expect_versions
from clgraft.core.graph.graph import Graph
from clgraft.core.graph.memory import Life, place
from clgraft.core.graph.passes import optimise
from clgraft.core.graph.structure import SKIPPED, Node
from clgraft.core.operators.pointwise import PointwiseProblem
from clgraft.core.planning.choose import Chosen
from clgraft.core.planning.device import DeviceInfo
from clgraft.core.planning.launches import Accumulate, Buffer, Constant, Launch, Launches, Scalar, Workspace
from clgraft.core.problem import Argument, Problem
from clgraft.core.runtime.plan import Plan, accumulate


class Context(Protocol):
    """What a graph is compiled for: `clgraft.core.session.Context` is one."""

    lifetime: Any
    handle: Any
    lib: Any
    ffi: Any
    queue: Any

    @property
    def device(self) -> DeviceInfo: ...

    def choose(self, problem: Problem) -> Chosen:
        """Return the implementation that serves a problem, with its launches."""

    def expect_possible(self, problem: Problem) -> None:
        """Check that the device can hold a problem."""

    def hand_over(self, problem: Any, launches: Launches, name: str) -> Any:
        """Hand launches to the C runtime and return the plan's handle."""


@dataclass(frozen=True)
class Signature:
    """What a compiled graph takes, in the form in which a plan asks a problem for it."""

    graph: Graph
    added: frozenset[str] = frozenset()
    details: str = ""  # what a plan's description says after its first line
    kind: str = "graph"

    def modes(self) -> tuple[str, ...]:
        """Return the one mode that each argument may have; problems without this method leave the choice to a run."""
        return tuple("ACCUMULATE" if argument.name in self.added else "OVERWRITE" for argument in self.arguments())

    def arguments(self) -> tuple[Argument, ...]:
        """Return inputs, states and outputs."""
        values = self.graph.values
        return (
            *(Argument(value.name, "in", value.shape, value.dtype) for value in self.graph.inputs),
            *(Argument(value.name, "inout", value.shape, value.dtype) for value in self.graph.states),
            *(Argument(name, "out", values[name].shape, values[name].dtype) for name in self.graph.outputs),
        )

    def scalars(self) -> tuple[str, ...]:
        """Return the names of the scalars that every run needs."""
        return self.graph.scalars

    def __str__(self) -> str:
        return f"graph of {len(self.graph.nodes)} problems -> {' '.join(self.graph.outputs)}"


@dataclass(frozen=True)
class Report:
    """What a compiled graph needs.

    Attributes
    ----------
    nodes, nodes_before : int
        Problems after the passes, and before.
    launches : int
    arena_bytes : int
        Memory for all values and workspaces inside of the graph.
    value_bytes : int
        The sum of the sizes of all values that the graph computes, before the passes.
    argument_bytes : int
        Inputs, states and outputs: what a run moves where the arrays are not on the device.
    constant_bytes : int
        Constants, which stay on the device.
    algorithms : tuple of (str, str)
        Each problem's text and the implementation that serves it.
    """

    nodes: int
    nodes_before: int
    launches: int
    arena_bytes: int
    value_bytes: int
    argument_bytes: int
    constant_bytes: int
    algorithms: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        share = self.arena_bytes / self.value_bytes if self.value_bytes else 0.0
        return (
            f"{self.nodes} problems (before the passes: {self.nodes_before}), {self.launches} launches;"
            f" arena {self.arena_bytes / 2**20:.1f} MiB, {share:.2f} of all values"
            f" ({self.value_bytes / 2**20:.1f} MiB); arguments {self.argument_bytes / 2**20:.1f} MiB,"
            f" constants {self.constant_bytes / 2**20:.1f} MiB"
        )


class CompiledGraph:
    """A graph prepared for a context. Made by `Context.compile`; safe to run from any thread.

    Outputs that a run skips are not computed: there is a plan for each set of wanted outputs, made on its first use.

    Attributes
    ----------
    graph : Graph
    passes : str or None
        Switches of passes (see `clgraft.core.graph.passes.optimise`).
    constants : mapping of str to array
        Inputs that never change. They are sent to the device once, and what follows from them alone is computed once.
    copies : Copies
        Where inputs with versions stay between runs.
    """

    def __init__(
        self,
        graph: Graph,
        context: Context,
        passes: str | None = None,
        constants: Mapping[str, Any] | None = None,
    ) -> None:
        for node in graph.nodes:
            context.expect_possible(node.problem)
        self.graph, self.passes, self.constants = graph, passes, dict(constants or {})
        inputs = {value.name for value in graph.inputs}
        for name in self.constants:
            if name not in inputs:
                raise ArgumentError(f"[graph] got constant {name!r}, expected one of the inputs {sorted(inputs)}")
        self._inputs = inputs - set(self.constants)
        self._known = self._inputs | {value.name for value in graph.states} | set(graph.outputs)
        self._context = context
        self.copies = Copies(context)
        self._variants: dict[tuple[frozenset[str], frozenset[str]], _Variant] = {}

    def __repr__(self) -> str:
        return f"CompiledGraph({len(self.graph.nodes)} problems, outputs={list(self.graph.outputs)})"

    def report(self, outputs: tuple[str, ...] | None = None) -> Report:
        """Return what a run for these outputs needs; by default for all outputs."""
        wanted = self.graph.outputs if outputs is None else outputs
        return self._variant(frozenset(wanted), frozenset()).report

    def plan(self, outputs: tuple[str, ...] | None = None) -> Plan:
        """Return the plan of a run that overwrites these outputs; by default all of them."""
        wanted = self.graph.outputs if outputs is None else outputs
        return self._variant(frozenset(wanted), frozenset()).plan

    def prepared(self, outputs: Collection[str], added: Collection[str] = ()) -> tuple[Plan, dict[str, Any]]:
        """Return the plan of a run that writes these outputs and adds to some of them, and the constants that it reads.

        For callers that bind memory to the plan's arguments themselves; the arrays of the constants are the plan's.
        """
        variant = self._variant(frozenset(outputs), frozenset(added))
        return variant.plan, variant.constants

    def run(
        self,
        arrays: Mapping[str, Any],
        scalars: Mapping[str, float] | None = None,
        versions: Mapping[str, int] | None = None,
        copies: Copies | None = None,
    ) -> dict[str, Any]:
        """Run the graph.

        Parameters
        ----------
        arrays : mapping of str to array
            Inputs, states and outputs by name: NumPy arrays or `pyopencl.array.Array` on the context's device,
            C-contiguous. An output that is missing is allocated as a NumPy array; one that is wrapped in `accumulate`
            is added to; one that is None is not computed. States are changed in place.
        scalars : mapping of str to float, optional
            All of the graph's scalars.
        versions : mapping of str to int, optional
            For inputs in host memory, a number for what they hold. An input is sent to the device only if its version
            differs from that of the last run with these copies; one whose version never changes is sent once. 0, or no
            version, means that it is always sent.
        copies : Copies, optional
            Where inputs with versions stay; by default this graph's own. A version belongs to the contents of an input
            for all graphs that share copies.

        Returns
        -------
        dict of str to array
            The computed outputs. With device arrays alone the work may still be queued (see `Context.finish`).

        Raises
        ------
        ArgumentError
            Naming the array that does not fit, what came and what was expected.
        ExecutionError
            If the device fails.
        """
        for name in arrays:
            if name not in self._known:
                raise ArgumentError(f"[graph] got array {name!r}, expected one of {sorted(self._known)}")
        values, given = self.graph.values, dict(arrays)
        wanted, added = [], []
        for name in self.graph.outputs:
            if name not in arrays:
                given[name] = np.empty(values[name].shape, values[name].dtype)
            elif arrays[name] is None:
                continue
            elif isinstance(arrays[name], accumulate):
                added.append(name)
            wanted.append(name)
        if not wanted and not self.graph.states:
            return {}
        variant = self._variant(frozenset(wanted), frozenset(added))
        plan = variant.plan
        given.update(variant.constants)
        missing = [argument.name for argument in plan.arguments if argument.name not in given]
        if missing:
            raise ArgumentError(f"[graph] got no array for {missing}, expected all inputs and states that are read")
        if versions:
            expect_versions(versions, self._inputs)
        staged = self._context.device.host_access == "staged"
        if versions and staged:
            on_host = {n: v for n, v in versions.items() if v and isinstance(given.get(n), np.ndarray)}
            plan.run_on(given, scalars, (copies or self.copies).bind(plan.arguments, on_host))
        else:
            plan.run_on(given, scalars)
        return {name: given[name].array if name in added else given[name] for name in wanted}

    def _variant(self, wanted: frozenset[str], added: frozenset[str]) -> _Variant:
        key = (wanted, added)
        if key not in self._variants:
            self._variants[key] = self._assemble(wanted, added)
        return self._variants[key]

    def hand_over(self, wanted: Collection[str], added: Collection[str]) -> Any:
        """Return the C runtime's handle of a new plan, which the caller owns.

        Parameters
        ----------
        wanted : collection of str
            The outputs that its runs compute.
        added : collection of str
            Those of them that are added to.
        """
        return self._handed(frozenset(wanted), frozenset(added))[0]

    def _assemble(self, wanted: frozenset[str], added: frozenset[str]) -> _Variant:
        handle, signature, report, constants = self._handed(wanted, added)
        return _Variant(Plan(self._context, signature, "graph", (), handle), report, constants)

    def _handed(self, wanted: frozenset[str], added: frozenset[str]) -> tuple[Any, Signature, Report, dict[str, Any]]:
        before = self.graph.with_outputs(name for name in self.graph.outputs if name in wanted)
        early, graph = split_constants(optimise(before, self.passes), self.constants)
        constants = self._computed(early, graph)
        assembly = _Assembly(graph, self._context, added)
        launches, arena = assembly.launches()
        signature = Signature(graph, added)
        inside = set(before.values) - {value.name for value in (*before.inputs, *before.states)}
        report = Report(
            nodes=len(graph.nodes),
            nodes_before=len(self.graph.nodes),
            launches=sum(0 not in launch.global_size for launch in launches.launches),
            arena_bytes=arena,
            value_bytes=sum(before.values[name].nbytes for name in inside),
            argument_bytes=sum(a.nbytes for a in signature.arguments() if a.name not in constants),
            constant_bytes=sum(graph.values[name].nbytes for name in constants),
            algorithms=tuple(assembly.algorithms),
        )
        signature = replace(signature, details="\n".join([str(report), *map(" | ".join, report.algorithms)]))
        return self._context.hand_over(signature, launches, "graph"), signature, report, constants

    def _computed(self, early: Graph, graph: Graph) -> dict[str, Any]:
        """Return the constants that a graph reads, in memory that the device uses in place."""
        read = {value.name for value in graph.inputs}
        needed = {value.name for value in early.inputs}
        sent = {name: self._on_device(a) for name, a in self.constants.items() if name in read | needed}
        results: dict[str, Any] = {}
        if early.nodes:
            made = {
                name: self._on_device(np.empty(v.shape, v.dtype))
                for name in early.outputs
                for v in [early.values[name]]
            }
            given = {name: sent[name] for name in needed}
            results = CompiledGraph(early, self._context, "-all").run({**given, **made})
        return {**{name: array for name, array in sent.items() if name in read}, **results}

    def _on_device(self, array: Any) -> Any:
        if self._context.device.host_access != "staged" or not isinstance(array, np.ndarray):
            return array
        import pyopencl.array as device_array

        return device_array.to_device(self._context.queue, np.ascontiguousarray(array))


@dataclass(frozen=True)
class _Variant:
    """A graph's plan for a set of outputs, and the constants that it reads."""

    plan: Plan
    report: Report
    constants: dict[str, Any]


def split_constants(graph: Graph, constants: Collection[str]) -> tuple[Graph, Graph]:
    """Return the part of a graph that follows from constants alone, and the rest, which reads the first part's outputs.

    Parameters
    ----------
    graph : Graph
    constants : collection of str
        Inputs whose values never change. A state, or an output of the graph, is never constant.
    """
    constant = set(constants)
    early: list[Node] = []
    late: list[Node] = []
    for node in graph.nodes:
        fixed = set(node.reads) <= constant and not any(isinstance(value, str) for value in node.scalars)
        if fixed and not node.changes and not set(node.writes) & set(graph.outputs):
            early.append(node)
            constant |= set(node.writes)
        else:
            late.append(node)
    read = {name for node in late for name in node.reads}
    made = tuple(name for node in early for name in node.writes if name in read)
    needed = {name for node in early for name in node.reads}
    before = Graph(tuple(early), tuple(value for value in graph.inputs if value.name in needed), made)
    inputs = [value for value in graph.inputs if value.name in read or value.name not in constants]
    inputs += [graph.values[name] for name in made]
    return before, Graph(tuple(late), tuple(inputs), graph.outputs, graph.states, graph.scalars)


class _Assembly:
    """Plans the nodes of a graph and binds their launches to the graph's arguments and the arena."""

    def __init__(self, graph: Graph, context: Context, added: frozenset[str]) -> None:
        self.graph, self.context = graph, context
        self.algorithms: list[tuple[str, str]] = []
        given = {value.name for value in (*graph.inputs, *graph.states)}
        # an output that is added to holds the sum: what later nodes read stays in the arena
        copied = {name for name in graph.outputs if name in added and graph.readers[name]}
        self.arguments = given | (set(graph.outputs) - copied)
        self.copied = tuple(name for name in graph.outputs if name in copied)
        self.planned = [self._planned(node) for node in graph.nodes]
        self.ends = self._ends()
        self.homes = self._homes()

    def _ends(self) -> dict[str, int]:
        """Return the last node that needs each value inside of the graph."""
        graph, last = self.graph, len(self.graph.nodes)
        return {
            name: last if name in self.copied else max(graph.readers[name], default=writer)
            for name, writer in graph.writers.items()
            if name not in self.arguments
        }

    def _homes(self) -> dict[str, str]:
        """Return the value in whose memory each value inside of the graph lies.

        A pointwise problem without reductions may write over an input of its whole shape that nobody reads later.
        """
        homes = {name: name for name in self.ends}
        for i, node in enumerate(self.graph.nodes):
            problem = node.problem
            if not isinstance(problem, PointwiseProblem) or any(problem.reductions) or problem.beta:
                continue
            free = [
                name
                for shape, name in zip(problem.inputs, node.reads)
                if shape == problem.common_shape and self.ends.get(name) == i and node.reads.count(name) == 1
            ]
            for name in node.writes:
                if name in homes and free:
                    homes[name] = homes[free.pop(0)]
        return homes

    def _planned(self, node: Node) -> Launches:
        chosen = self.context.choose(node.problem)
        self.algorithms.append((str(node.problem), chosen.algorithm))
        return chosen.launches

    def launches(self) -> tuple[Launches, int]:
        """Return all launches, and the size of the arena in bytes."""
        offsets, arena = place(self._lives())
        bound: list[Launch] = []
        for i, (node, planned) in enumerate(zip(self.graph.nodes, self.planned)):
            for launch in planned.launches:
                if launch.writes and all(node.named(name) == SKIPPED for name in launch.writes):
                    continue
                arguments = tuple(self._bind(item, i, node, offsets) for item in launch.arguments)
                bound.append(replace(launch, arguments=arguments, writes=()))
        for name in self.copied:
            bound += self._copy(name, offsets[self.homes[name]])
        return Launches(tuple(bound), arena), arena

    def _lives(self) -> list[Life]:
        graph, lives = self.graph, []
        for home in dict.fromkeys(self.homes.values()):
            guests = [name for name, at in self.homes.items() if at == home]
            first, last = graph.writers[home], max(self.ends[name] for name in guests)
            lives.append(Life(home, graph.values[home].nbytes, first, last))
        for i, (node, planned) in enumerate(zip(graph.nodes, self.planned)):
            if planned.workspace_bytes:
                lives.append(Life(f"{i} workspace", planned.workspace_bytes, i, i))
            for argument, name in zip(node.problem.arguments(), node.arguments):
                if name == SKIPPED:
                    lives.append(Life(f"{i} {argument.name}", argument.nbytes, i, i))
        return lives

    def _bind(self, item: Any, i: int, node: Node, offsets: Mapping[str, int]) -> Any:
        if isinstance(item, (Buffer, Accumulate)):
            name = node.named(item.name)
            inside = name not in self.arguments
            if isinstance(item, Accumulate):
                return Constant(np.int32(0)) if inside else Accumulate(name)
            if not inside:
                return Buffer(name)
            dtype = next(a.dtype for a in node.problem.arguments() if a.name == item.name)
            place_of = f"{i} {item.name}" if name == SKIPPED else self.homes[name]
            return Workspace(offsets[place_of], np.dtype(dtype).itemsize)
        if isinstance(item, Workspace):
            return Workspace(offsets[f"{i} workspace"] + item.offset_bytes, item.itemsize)
        if isinstance(item, Scalar):
            value = node.scalars[node.problem.scalars().index(item.name)]
            return Scalar(value, item.dtype) if isinstance(value, str) else Constant(np.dtype(item.dtype).type(value))
        return item

    def _copy(self, name: str, offset: int) -> list[Launch]:
        """Return the launches that add a value in the arena to the output of its name."""
        value = self.graph.values[name]
        problem = PointwiseProblem(((value.size,),), "y0 = x0;", dtype=value.dtype)
        source = Workspace(offset, np.dtype(value.dtype).itemsize)

        def bind(item: Any) -> Any:
            if isinstance(item, Buffer):
                return source if item.name == "x0" else Buffer(name)
            if isinstance(item, Workspace):
                raise ProblemError(f"[graph] got a copy of {name} with a workspace, expected none")
            return Accumulate(name) if isinstance(item, Accumulate) else item

        launches = self.context.choose(problem).launches.launches
        return [replace(launch, arguments=tuple(map(bind, launch.arguments)), writes=()) for launch in launches]
