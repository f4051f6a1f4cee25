"""Graphs prepared for a context: every launch of every node in one plan, with values in one arena."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np

from clgraft.core.errors import ArgumentError, BuildError, ExecutionError
from clgraft.core.graph import kept_recipes
from clgraft.core.graph.bound import BoundGraph
from clgraft.core.graph.copies import Copies, expect_versions
from clgraft.core.graph.graph import Graph
from clgraft.core.graph.identity import copy_inputs, names_of_copies
from clgraft.core.graph.passes import (
    MOST_ON_CPUS,
    Image,
    Preferences,
    join_casts,
    join_totals,
    join_updates,
    optimise,
    split_batch,
    switched_on,
)
from clgraft.core.graph.placement import Placed, Placement
from clgraft.core.graph.prepared import prepare, reads
from clgraft.core.graph.recipe import Recipe, Signature
from clgraft.core.graph.report import Report
from clgraft.core.graph.structure import Node
from clgraft.core.operators.batchnorm import BatchNormProblem, channels_cpu, rows_gpu
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
    cl_device: Any
    programs: Any

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

    def planning_state(self) -> str | None:
        """Return what else decides how problems are planned, as text; None where no plan must be kept for it."""

    def problem_clock(self) -> float:
        """Return the clock where problems of graphs are to be told, else 0."""

    def plan_began(self) -> float:
        """Return the clock where plans are to be told, else 0."""

    def plan_ended(self, problem: Any, name: str, began: float) -> None:
        """Tell of a plan if that is asked for."""

    def problem_planned(self, problem: Problem, name: str, began: float, ended: float) -> None:
        """Tell of a problem of a graph if that is asked for."""

    def hand_over(self, problem: Any, launches: Launches, name: str) -> Any:
        """Hand launches to the C runtime and return the plan's handle."""


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
    last : mapping of str to Image
        Inputs and outputs that lie in channels last (see `clgraft.core.graph.passes.settled`).
    on_device : frozenset of str
        Inputs, states and outputs that are in memory of the device in every run.
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
        kept: bool = False,
        last: Mapping[str, Image] | None = None,
        on_device: Collection[str] = (),
    ) -> None:
        context.expect_addressable("graph", Signature.of(graph).arguments())
        for node in graph.nodes:
            context.expect_possible(node.problem)
        self.graph, self.passes, self.constants, self.memory = graph, passes, dict(constants or {}), memory
        self.last, self.on_device = dict(last or {}), frozenset(on_device)
        self.mixed = mixed_precision(precision)
        inputs = {value.name for value in graph.inputs}
        for name in self.constants:
            if name not in inputs:
                raise ArgumentError(f"[graph] got constant {name!r}, expected one of the inputs {sorted(inputs)}")
        self._inputs = inputs - set(self.constants)
        self._copies = names_of_copies(graph)
        self._tells, self._is_kept = True, kept
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
            The computed outputs. Without results in host memory the work may still be queued (see `Context.finish`).

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

    def bind(self, arrays: Mapping[str, Any]) -> BoundGraph:
        """Return runs of all outputs with some arrays that stay the same ones, as a trainer's parameters do.

        Parameters
        ----------
        arrays : mapping of str to array
            Inputs and states, as `run` takes them.
        """
        if not arrays.keys() <= self._known - set(self.graph.outputs):
            raise ArgumentError(f"[graph] got arrays {sorted(arrays)}, expected inputs and states")
        variant, values = self._variant(frozenset(self.graph.outputs), frozenset()), self.graph.values
        outputs = {name: self._copies.get(name, name) for name in self.graph.outputs}
        made = [(name, place, values[name].shape, values[name].dtype) for name, place in outputs.items()]
        return BoundGraph(variant.plan, {**arrays, **variant.constants}, made)

    def _variant(self, wanted: frozenset[str], added: frozenset[str]) -> _Variant:
        key = (wanted, added)
        if key not in self._variants:
            handed = self._handed(wanted, added)
            self._variants[key] = _Variant(handed.plan(self._context), handed.recipe.report, handed.constants)
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
        return self._handed(frozenset(wanted), frozenset(added)).handle

    def _handed(self, wanted: frozenset[str], added: frozenset[str]) -> _Handed:
        began = self._context.plan_began()
        before = copy_inputs(
            self.graph.with_outputs(name for name in self.graph.outputs if name in wanted), self._copies
        )
        added = frozenset(self._copies.get(name, name) for name in added)
        key = self._key(before, added)
        handed = None if key is None else self._followed(key)
        if handed is None:
            try:
                handed = self._planned(before, added, key)
            except BuildError:  # caused by advice, which the context does not follow any more
                handed = self._planned(before, added, self._key(before, added))
        self._context.plan_ended(handed.recipe.signature, "graph", began)
        return handed

    def _key(self, before: Graph, added: frozenset[str]) -> str | None:
        """Return the key of a recipe in the program cache; None if there is to be none."""
        if not self._is_kept or len(before.nodes) < kept_recipes.LEAST or self._context.problem_clock():
            return None
        return kept_recipes.key_of(
            self._context,
            str(before),
            constants=sorted(self.constants),
            added=sorted(added),
            copies=sorted(self._copies.items()),
            nodes=len(self.graph.nodes),
            passes=switched_on(self.passes),
            mixed=self.mixed,
            memory=self.memory,
            last=sorted(self.last.items()),
            on_device=sorted(self.on_device),
        )

    def _followed(self, key: str) -> _Handed | None:
        """Return the plan that a recipe in the program cache makes; None if there is none, or the device refuses it."""
        recipe = kept_recipes.load(self._context, key)
        if recipe is None:
            return None
        try:
            return self._followed_through(recipe, self.constants)
        except (BuildError, ExecutionError):
            return None

    def _followed_through(self, recipe: Recipe, constants: Mapping[str, Any]) -> _Handed:
        """Return the plan that a recipe makes with some arrays."""
        first = None
        if recipe.early is not None:
            first = self._followed_through(recipe.early, {})
        given = self._computed(recipe.constants, constants, first)
        return self._prepared(recipe, given)

    def _planned(self, before: Graph, added: frozenset[str], key: str | None) -> _Handed:
        counts: dict[str, int] = {}
        preferences = preferences_of(self._context, self.passes)
        early, graph = split_constants(
            optimise(before, self.passes, self._fits, counts, self.constants, self.mixed, preferences, self.last),
            self.constants,
        )
        first = self._once(early) if early.nodes else None
        read = {value.name for value in (*graph.inputs, *early.inputs)}
        read_constants = tuple(name for name in self.constants if name in read)
        given = self._computed(read_constants, self.constants, first)
        constants = {value.name: given[value.name] for value in graph.inputs if value.name in given}
        passes = switched_on(self.passes)
        if {"parts", "views"} <= set(passes):
            graph = split_batch(graph, self._context.device, constants, self._fits, counts)
        joins: dict[str, Callable[[Graph], Graph]] = {
            "casts": join_casts,
            "updates": join_updates,
            "totals": join_totals,
        }
        if self._context.device.is_cpu:
            joins = {"updates": partial(join_updates, most=MOST_ON_CPUS)}
        for name, join in joins.items():
            if name in passes:
                many, graph = len(graph.nodes), join(graph)
                if len(graph.nodes) != many:
                    counts[name] = many - len(graph.nodes)
        placement = Placement(graph, self._context, added, frozenset(constants), passes, self.on_device)
        limit = self._context.device.global_memory if self.memory is None else self.memory
        for attempt, placed in enumerate(placement.attempts(limit, strict=self.memory is not None)):
            try:
                handed = self._handed_over(before, placed, added, constants, counts)
            except ExecutionError as error:
                if error.status != self._context.lib.CLG_OUT_OF_MEMORY:
                    raise
                refused, status, arena = str(error), error.status, placed.arena
                continue
            recipe = replace(handed.recipe, constants=read_constants, early=None if first is None else first.recipe)
            if key is not None and not attempt and key == self._key(before, added):
                kept_recipes.keep(key, recipe)
            return handed._replace(recipe=recipe)
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
    ) -> _Handed:
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
        """
        preparation, launches = placed.assembly.preparation, placed.launches
        unread = frozenset(constants) - reads(launches.launches)
        copies = {name: copy for name, copy in self._copies.items() if copy in before.outputs}
        kept = preparation.kept("in")
        signature = Signature.of(placed.graph, added, before, unread, kept, copies)
        held = {*constants, *(argument.name for argument in kept)} - unread
        inside = set(before.values) - {value.name for value in (*before.inputs, *before.states)}
        staged = self._context.device.host_access == "staged"
        moved = [argument for argument in signature.taken if staged and argument.name not in held]
        report = Report(
            nodes=len(placed.graph.nodes),
            nodes_before=len(self.graph.nodes),
            launches=sum(0 not in launch.global_size for launch in launches.launches),
            arena_bytes=placed.arena,
            value_bytes=sum(before.values[name].nbytes for name in inside),
            argument_bytes=sum(a.nbytes for a in signature.taken if a.name not in held),
            constant_bytes=sum(a.nbytes for a in signature.taken if a.name in held),
            algorithms=tuple(placed.assembly.algorithms),
            work=tuple(placed.assembly.work),
            passes=tuple((name, count) for name, count in counts.items() if name not in UNJOINED),
            in_parts=counts.get("parts", 0),
            conversions=counts.get("layouts", 0),
            channels_last=counts.get(LAST, 0),
            recomputed=placed.recomputed,
            second_queue=sum(launch.lane for launch in launches.launches),
            bytes_to_device=sum(argument.nbytes for argument in moved if argument.role != "out"),
            bytes_to_host=sum(argument.nbytes for argument in moved if argument.role != "in"),
        )
        signature = replace(signature, details="\n".join([str(report), *map(" | ".join, report.algorithms)]))
        handed = self._prepared(Recipe(signature, launches, preparation, report), constants)
        for problem, times in placed.assembly.times.items() if self._tells else ():
            self._context.problem_planned(problem, *times)
        return handed

    def _prepared(self, recipe: Recipe, constants: Mapping[str, Any]) -> _Handed:
        """Prepare constants as a recipe says and hand its launches over."""
        found = {**constants, **prepare(self._context, recipe.preparation, constants)}
        taken = {argument.name for argument in recipe.signature.taken}
        handle = self._context.hand_over(recipe.signature, recipe.launches, "graph")
        return _Handed(recipe, handle, {name: array for name, array in found.items() if name in taken})

    def _fits(self, problem: Problem) -> bool:
        """Return whether one kernel serves all parts of a problem, and none of them is slower for that."""
        norms = (channels_cpu.NAME, rows_gpu.NAME)
        names = norms if isinstance(problem, BatchNormProblem) else (in_kernel.NAME,)
        return any(self._context.serves(problem, name) for name in names)

    def _once(self, early: Graph) -> _Handed:
        """Return the plan of what follows from constants alone."""
        once = CompiledGraph(early, self._context, "-all", precision=FLOAT32)
        once._tells = False  # nobody tunes what runs once
        return once._handed(frozenset(early.outputs), frozenset())

    def _computed(self, names: Sequence[str], constants: Mapping[str, Any], first: _Handed | None) -> dict[str, Any]:
        """Return constants, and what a plan computes of them, in memory that the device uses in place."""
        found = {name: self._on_device(constants[name]) for name in names}
        if first is not None:
            made = {
                argument.name: self._on_device(np.empty(argument.shape, argument.dtype))
                for argument in first.recipe.signature.taken
                if argument.role == "out"
            }
            first.plan(self._context).run_on({**found, **first.constants, **made})
            found.update(made)
        return found

    def _on_device(self, array: Any) -> Any:
        if self._context.device.host_access != "staged" or not isinstance(array, np.ndarray):
            return array
        import pyopencl.array as device_array

        return device_array.to_device(self._context.queue, np.ascontiguousarray(array))


def preferences_of(context: Context, switches: str | None = None) -> Preferences | None:
    """Return what a context's device prefers in channels last; None: nothing, or the pass `layouts` is off.

    Parameters
    ----------
    context : Context
    switches : str, optional
        See `clgraft.core.graph.passes.switched_on`.
    """
    types = context.device.channels_last
    if not types or "layouts" not in switched_on(switches):
        return None

    def lies(problem: Problem) -> bool:
        """Return whether a problem in channels last runs on its arguments as they lie in memory."""
        return context.foreseen(problem) != transposes.NAME

    return Preferences(lambda problem: problem.dtype in types and lies(problem), lies)


class _Handed(NamedTuple):
    """A recipe that was followed: the C runtime's handle of the plan, and the constants that its runs read."""

    recipe: Recipe
    handle: Any
    constants: dict[str, Any]

    def plan(self, context: Context) -> Plan:
        """Return the plan, which owns the handle."""
        report = self.recipe.report
        return Plan(context, self.recipe.signature, "graph", (), self.handle, work=report.work)  # type: ignore[arg-type]


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
