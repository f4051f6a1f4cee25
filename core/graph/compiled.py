"""Graphs prepared for a context: every launch of every node in one plan, with values in one arena."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from clgraft.core.errors import ArgumentError, BuildError, ExecutionError
from clgraft.core.graph.copies import Copies, expect_versions
from clgraft.core.graph.graph import Graph
from clgraft.core.graph.identity import copy_inputs, names_of_copies
from clgraft.core.graph.passes import Preferences, join_casts, optimise, split_batch, switched_on
from clgraft.core.graph.placement import Placed, Placement
from clgraft.core.graph.prepared import prepare, reads
from clgraft.core.graph.report import Report
from clgraft.core.graph.structure import Node
from clgraft.core.operators.channels_last import transposes
from clgraft.core.operators.fused import in_kernel
from clgraft.core.planning.choose import Chosen
from clgraft.core.planning.device import DeviceInfo
from clgraft.core.planning.launches import Launches
from clgraft.core.planning.precision import FLOAT32, mixed_precision
from clgraft.core.problem import Argument, Problem
from clgraft.core.problem.layout import LAST
from clgraft.core.runtime.plan import Plan, accumulate

UNJOINED = ("layouts", LAST, "parts")  # counts of passes that make no problem part of another one


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

    def serves(self, problem: Problem, algorithm: str) -> bool:
        """Return whether the implementation of a name serves a problem."""

    def foreseen(self, problem: Problem) -> str:
        """Return the name of the implementation that is going to serve a problem."""

    def expect_possible(self, problem: Problem) -> None:
        """Check that the device can hold a problem."""

    def expect_addressable(self, kind: str, arguments: Sequence[Argument]) -> None:
        """Check that a machine can address each argument."""

    def plan_began(self) -> float:
        """Return the clock where plans are to be told, else 0."""

    def plan_ended(self, problem: Any, name: str, began: float) -> None:
        """Tell of a plan if that is asked for."""

    def problem_planned(self, problem: Problem, name: str, began: float, ended: float) -> None:
        """Tell of a problem of a graph if that is asked for."""

    def hand_over(self, problem: Any, launches: Launches, name: str) -> Any:
        """Hand launches to the C runtime and return the plan's handle."""


@dataclass(frozen=True)
class Signature:
    """What a compiled graph takes, in the form in which a plan asks a problem for it."""

    graph: Graph
    added: frozenset[str] = frozenset()
    details: str = ""  # what a plan's description says after its first line
    kind: str = "graph"
    shown: Graph | None = None  # the graph before its passes, which may see outputs in other shapes
    unread: frozenset[str] = frozenset()  # constants that no launch reads
    kept: tuple[Argument, ...] = ()  # what was prepared from constants
    copies: tuple[tuple[str, str], ...] = ()  # inputs that are outputs, with the names of their copies

    def modes(self) -> tuple[str, ...]:
        """Return the one mode that each argument may have; problems without this method leave the choice to a run."""
        return tuple("ACCUMULATE" if argument.name in self.added else "OVERWRITE" for argument in self.arguments())

    @property
    def _sources(self) -> dict[str, str]:
        return {copy: name for name, copy in self.copies}

    def shown_names(self) -> tuple[str, ...]:
        """Return the names of the arguments in the C runtime: a copy of an input has the name of that input."""
        sources = self._sources
        return tuple(sources.get(argument.name, argument.name) for argument in self.arguments())

    def arguments(self) -> tuple[Argument, ...]:
        """Return inputs, states and outputs (in their shape in `shown`), and what was prepared from constants."""
        values, sources = (self.shown or self.graph).values, self._sources
        results = ((name, values[sources.get(name, name)]) for name in self.graph.outputs)
        return (
            *(Argument(v.name, "in", v.shape, v.dtype) for v in self.graph.inputs if v.name not in self.unread),
            *self.kept,
            *(Argument(value.name, "inout", value.shape, value.dtype) for value in self.graph.states),
            *(Argument(name, "out", value.shape, value.dtype) for name, value in results),
        )

    def scalars(self) -> tuple[str, ...]:
        """Return the names of the scalars that every run needs."""
        return self.graph.scalars

    def __str__(self) -> str:
        sources = self._sources
        outputs = (sources.get(name, name) for name in self.graph.outputs)
        return f"graph of {len(self.graph.nodes)} problems -> {' '.join(outputs)}"


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
    memory : int or None
        Most bytes for values inside of the graph; None: what the device has.
    copies : Copies
        Where inputs with versions stay between runs.
    """

    def __init__(
        self,
        graph: Graph,
        context: Context,
        passes: str | None = None,
        constants: Mapping[str, Any] | None = None,
        memory: int | None = None,
        precision: str | None = None,
    ) -> None:
        context.expect_addressable("graph", Signature(graph).arguments())
        for node in graph.nodes:
            context.expect_possible(node.problem)
        self.graph, self.passes, self.constants, self.memory = graph, passes, dict(constants or {}), memory
        self.mixed = mixed_precision(precision)
        inputs = {value.name for value in graph.inputs}
        for name in self.constants:
            if name not in inputs:
                raise ArgumentError(f"[graph] got constant {name!r}, expected one of the inputs {sorted(inputs)}")
        self._inputs = inputs - set(self.constants)
        self._copies = names_of_copies(graph)
        self._tells = True
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

    def reports(self) -> tuple[Report, ...]:
        """Return what the runs so far needed: a report for each set of outputs."""
        return tuple(variant.report for variant in list(self._variants.values()))

    def plans(self) -> tuple[Plan, ...]:
        """Return the plans of the runs so far: one for each set of outputs."""
        return tuple(variant.plan for variant in list(self._variants.values()))

    def plan(self, outputs: tuple[str, ...] | None = None) -> Plan:
        """Return the plan of a run that overwrites these outputs; by default all of them."""
        wanted = self.graph.outputs if outputs is None else outputs
        return self._variant(frozenset(wanted), frozenset()).plan

    def prepared(self, outputs: Collection[str], added: Collection[str] = ()) -> tuple[Plan, dict[str, Any]]:
        """Return the plan of a run that writes these outputs and adds to some of them, and the constants that it reads.

        For callers that bind memory to the plan's arguments themselves; the arrays of the constants are the plan's. An
        output that is an input has another name among the arguments: they are two.
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
            is added to; one that is None is not computed. States are changed in place. Where an input is an output as
            well, its name stands for the input: it comes back as a copy in a new NumPy array.
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
        if not arrays.keys() <= self._known:
            name = next(name for name in arrays if name not in self._known)
            raise ArgumentError(f"[graph] got array {name!r}, expected one of {sorted(self._known)}")
        values, given = self.graph.values, dict(arrays)
        wanted, added = [], []
        places = {name: self._copies.get(name, name) for name in self.graph.outputs}
        for name, place in places.items():
            if name not in arrays or name in self._inputs:
                given[place] = np.empty(values[name].shape, values[name].dtype)
            elif arrays[name] is None:
                continue
            else:
                given[place] = arrays[name]
                if isinstance(arrays[name], accumulate):
                    added.append(name)
            wanted.append(name)
        if not wanted and not self.graph.states:
            return {}
        variant = self._variant(frozenset(wanted), frozenset(added))
        plan = variant.plan
        given.update(variant.constants)
        if versions:
            expect_versions(versions, self._inputs)
        staged = self._context.device.host_access == "staged"
        if versions and staged:
            on_host = {n: v for n, v in versions.items() if v and isinstance(given.get(n), np.ndarray)}
            plan.run_on(given, scalars, (copies or self.copies).bind(plan.arguments, on_host))
        else:
            plan.run_on(given, scalars)
        return {name: given[places[name]].array if name in added else given[places[name]] for name in wanted}

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
        return _Variant(Plan(self._context, signature, "graph", (), handle, work=report.work), report, constants)

    def _handed(self, wanted: frozenset[str], added: frozenset[str]) -> tuple[Any, Signature, Report, dict[str, Any]]:
        began = self._context.plan_began()
        try:
            planned = self._planned(wanted, added)
        except BuildError:  # caused by advice, which the context does not follow any more
            planned = self._planned(wanted, added)
        self._context.plan_ended(planned[1], "graph", began)
        return planned

    def _planned(self, wanted: frozenset[str], added: frozenset[str]) -> tuple[Any, Signature, Report, dict[str, Any]]:
        before = copy_inputs(
            self.graph.with_outputs(name for name in self.graph.outputs if name in wanted), self._copies
        )
        added = frozenset(self._copies.get(name, name) for name in added)
        counts: dict[str, int] = {}
        early, graph = split_constants(
            optimise(before, self.passes, self._fits, counts, self.constants, self.mixed, self._preferences()),
            self.constants,
        )
        constants = self._computed(early, graph)
        passes = switched_on(self.passes)
        if {"parts", "views"} <= set(passes):
            graph = split_batch(graph, self._context.device, constants, self._fits, counts)
        if "casts" in passes and not self._context.device.is_cpu:
            before_casts, graph = graph, join_casts(graph)
            if graph is not before_casts:
                counts["casts"] = len(before_casts.nodes) - len(graph.nodes)
        placement = Placement(graph, self._context, added, frozenset(constants), passes)
        limit = self._context.device.global_memory if self.memory is None else self.memory
        for placed in placement.attempts(limit, strict=self.memory is not None):
            try:
                return self._handed_over(before, placed, added, constants, counts)
            except ExecutionError as error:
                if error.status != self._context.lib.CLG_OUT_OF_MEMORY:
                    raise
                refused, status, arena = str(error), error.status, placed.arena
        raise ExecutionError(
            f"[graph] got no memory on {self._context.device.name} for an arena of {arena} bytes, expected room"
            f" for it: a smaller batch needs less ({refused})",
            status,
        )

    def _handed_over(
        self,
        before: Graph,
        placed: Placed,
        added: frozenset[str],
        constants: Mapping[str, Any],
        counts: Mapping[str, int],
    ) -> tuple[Any, Signature, Report, dict[str, Any]]:
        """Prepare constants for one placement of a graph and hand its launches over.

        Parameters
        ----------
        before : Graph
            The graph before its passes.
        placed : Placed
        added : frozenset of str
        constants : mapping of str to array
        counts : mapping of str to int
            What each pass changed.

        Returns
        -------
        handle, signature, report, constants
            Of the plan, with the constants that it reads.
        """
        preparation, launches = placed.assembly.preparation, placed.launches
        unread = frozenset(constants) - reads(launches.launches)
        copies = tuple((name, copy) for name, copy in self._copies.items() if copy in before.outputs)
        signature = Signature(
            placed.graph, added, shown=before, unread=unread, kept=preparation.kept("in"), copies=copies
        )
        kept = {**constants, **prepare(self._context, preparation, constants)}
        kept = {name: array for name, array in kept.items() if name not in unread}
        inside = set(before.values) - {value.name for value in (*before.inputs, *before.states)}
        staged = self._context.device.host_access == "staged"
        moved = [argument for argument in signature.arguments() if staged and argument.name not in kept]
        report = Report(
            nodes=len(placed.graph.nodes),
            nodes_before=len(self.graph.nodes),
            launches=sum(0 not in launch.global_size for launch in launches.launches),
            arena_bytes=placed.arena,
            value_bytes=sum(before.values[name].nbytes for name in inside),
            argument_bytes=sum(a.nbytes for a in signature.arguments() if a.name not in kept),
            constant_bytes=sum(a.nbytes for a in signature.arguments() if a.name in kept),
            algorithms=tuple(placed.assembly.algorithms),
            work=tuple(placed.assembly.work),
            passes=tuple((name, count) for name, count in counts.items() if name not in UNJOINED),
            in_parts=counts.get("parts", 0),
            conversions=counts.get("layouts", 0),
            channels_last=counts.get(LAST, 0),
            recomputed=placed.recomputed,
            bytes_to_device=sum(argument.nbytes for argument in moved if argument.role != "out"),
            bytes_to_host=sum(argument.nbytes for argument in moved if argument.role != "in"),
        )
        signature = replace(signature, details="\n".join([str(report), *map(" | ".join, report.algorithms)]))
        handle = self._context.hand_over(signature, launches, "graph")
        for problem, times in placed.assembly.times.items() if self._tells else ():
            self._context.problem_planned(problem, *times)
        return handle, signature, report, kept

    def _fits(self, problem: Problem) -> bool:
        """Return whether one kernel serves all parts of a problem, and none of them is slower for that."""
        return self._context.serves(problem, in_kernel.NAME)

    def _preferences(self) -> Preferences | None:
        """Return what the device prefers in channels last; None: nothing."""
        types = self._context.device.channels_last
        if not types:
            return None
        return Preferences(lambda problem: problem.dtype in types and self._lies(problem), self._lies)

    def _lies(self, problem: Problem) -> bool:
        """Return whether a problem in channels last runs on its arguments as they lie in memory."""
        return self._context.foreseen(problem) != transposes.NAME

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
            once = CompiledGraph(early, self._context, "-all", precision=FLOAT32)
            once._tells = False  # nobody tunes what runs once
            results = once.run({**given, **made})
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
