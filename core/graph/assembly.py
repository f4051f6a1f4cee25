"""Binds the launches of a graph's problems to the graph's arguments and to one arena for all values inside."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from clgraft.core.errors import BuildError, Declined, ProblemError
from clgraft.core.graph.graph import Graph
from clgraft.core.graph.homes import Homes
from clgraft.core.graph.identity import identity
from clgraft.core.graph.lanes import Lanes
from clgraft.core.graph.memory import Life, place
from clgraft.core.graph.prepared import Kept, Preparation, reads, take_out
from clgraft.core.graph.structure import SKIPPED, Node
from clgraft.core.operators.batchnorm import BatchNormProblem
from clgraft.core.operators.conv.problem import ConvProblem
from clgraft.core.operators.fused import FusedProblem
from clgraft.core.planning.choose import Chosen
from clgraft.core.planning.device import DeviceInfo
from clgraft.core.planning.floor import Work
from clgraft.core.planning.launches import (
    Accumulate,
    Buffer,
    Constant,
    Launch,
    Launches,
    OfNorm,
    Scalar,
    Statistics,
    Workspace,
)
from clgraft.core.problem import SMALL, Argument, Problem
from clgraft.core.problem.layout import LAST

VIEW = "view"  # the algorithm of a copy that has nothing to do


class Chooser(Protocol):
    """What chooses implementations: a `clgraft.core.session.Context`."""

    @property
    def device(self) -> DeviceInfo: ...

    def choose(self, problem: Problem) -> Chosen:
        """Return the implementation that serves a problem, with its launches."""

    def choose_with_sums(self, layer: Problem, norm: Problem) -> tuple[Chosen, Chosen, int]:
        """Return what serves a layer and the norm after it, and the bytes of the sums in between; or decline."""

    def problem_clock(self) -> float:
        """Return the clock where problems of graphs are to be told, else 0."""


@dataclass(frozen=True)
class LeftSums:
    """The numbers of a layer and of the norm that takes its sums, the sums' bytes, and what serves the two nodes."""

    layer: int
    norm: int
    nbytes: int
    chosen: Mapping[int, Chosen]


def norms_of_layers(graph: Graph, passes: Collection[str]) -> dict[int, int]:
    """Return the batch norm that takes sums of what a convolution makes, by the convolution's number.

    With the pass ``statistics`` it is the norm of the convolution's result, with ``sums`` the gradient of a norm whose
    result has the gradient that the convolution's data gradient makes. Both have 16 bits in channels last, where the
    norm's rows are the convolution's pixels.
    """
    ways = {"statistics": ("forward_training", "x", "forward"), "sums": ("backward_training", "dy", "backward_data")}
    known = {norm: (read, layer) for name, (norm, read, layer) in ways.items() if name in passes}
    found: dict[int, int] = {}
    for i, node in enumerate(graph.nodes):
        norm = node.problem
        if not isinstance(norm, BatchNormProblem) or norm.direction not in known or norm.pixels != 1:
            continue
        read, direction = known[norm.direction]
        layer = graph.writers.get(node.named(read))
        if layer is None:
            continue
        problem = graph.nodes[layer].problem
        conv = problem.base if isinstance(problem, FusedProblem) else problem
        if not isinstance(conv, ConvProblem) or conv.direction != direction or conv.layout != LAST:
            continue
        same = conv.dtype in SMALL and conv.arguments()[-1].shape[-1] == norm.channels
        # the layer reads these with the norm
        others = [name for name in node.reads if name != node.named(read)] if direction == "backward_data" else []
        there = all(graph.writers.get(name, -1) < layer for name in others)
        if same and there and not graph.changes_between(others, layer, i):
            found.setdefault(layer, i)
    return found


class Assembly:
    """Plans the nodes of a graph and binds their launches to the graph's arguments and the arena.

    Parameters
    ----------
    graph : Graph
    context : Chooser
    added : frozenset of str
        Outputs that a run adds to.
    views : bool
        Whether copies may become views.
    constants : collection of str
        Inputs that never change: launches that only prepare them are left to `preparation`.
    passes : collection of str
        With which layers leave the sums that batch norms need: see `norms_of_layers`.
    queues : bool
        Whether nodes may run on a second queue.
    on_device : collection of str
        Inputs, states and outputs that are in memory of the device in every run.
    """

    def __init__(
        self,
        graph: Graph,
        context: Chooser,
        added: frozenset[str],
        views: bool = True,
        constants: Collection[str] = (),
        passes: Collection[str] = ("statistics", "sums"),
        queues: bool = False,
        on_device: Collection[str] = (),
    ) -> None:
        self.graph, self.context, self.constants = graph, context, constants
        self._taken: list[Launch] = []
        self._sizes: dict[str, int] = {}
        # nodes whose prepared constants serve equal problems of the same constants
        self._preparing: dict[tuple[Problem, tuple[str | None, ...]], int] = {}
        self.algorithms: list[tuple[str, str]] = []
        self.work: list[Work] = []
        self.times: dict[Problem, tuple[str, float, float]] = {}  # the implementation, when it was chosen, from and to
        given = {value.name for value in (*graph.inputs, *graph.states)}
        # an output that is added to holds the sum: what later nodes read stays in the arena
        copied = {name for name in graph.outputs if name in added and graph.readers[name]}
        self.arguments = given | (set(graph.outputs) - copied)
        self.copied = tuple(name for name in graph.outputs if name in copied)
        lanes = Lanes.of(graph, self.arguments - set(on_device)) if queues else None
        self.lanes = lanes if lanes is not None and any(lanes.second) else None
        self.homes = Homes.of(graph, self.arguments, self.copied, views, self.lanes)
        self._chosen: dict[Problem, Chosen] = {}
        self._together: dict[tuple[Problem, Problem], tuple[Chosen, Chosen, int] | None] = {}
        self.sums: dict[int, LeftSums] = {}  # by the numbers of both nodes
        self._norms = norms_of_layers(graph, passes)
        self.planned = [self._planned(i, node) for i, node in enumerate(graph.nodes)]

    def _planned(self, i: int, node: Node) -> Launches:
        if i in self.homes.views:
            self.algorithms.append((str(node.problem), VIEW))
            return Launches(())
        launches = self._launches(i, node)
        self.work.append(Work.of(node.problem, launches, node.arguments, {SKIPPED}))
        read = tuple(name if name in self.constants else None for name in node.arguments)
        number = self._preparing.setdefault((node.problem, read), i)
        planned, taken, sizes = take_out(number, node, launches, self.constants)
        if number == i:
            self._taken += taken
            self._sizes.update(sizes)
        return planned

    def _launches(self, i: int, node: Node) -> Launches:
        """Return a node's launches of their own kernels."""
        norm = self._norms.get(i)
        if norm is not None and not set(node.reads) & set(self.constants):
            self._join(i, norm)
        sums = self.sums.get(i)
        if sums is not None:
            chosen = sums.chosen[i]
            self.algorithms.append((str(node.problem), f"{chosen.label}{'' if i == sums.layer else ' after sums'}"))
            return chosen.launches.again()
        known = self._chosen.get(node.problem)
        began = self.context.problem_clock()
        chosen = known or self.context.choose(node.problem)
        self._chosen[node.problem] = chosen
        if not known:
            self.times[node.problem] = chosen.label, began, self.context.problem_clock()
        self.algorithms.append((str(node.problem), chosen.label))
        return chosen.launches.again() if known else chosen.launches

    def _join(self, layer: int, norm: int) -> None:
        """Let a layer leave sums for the norm after it, if both are computed by implementations that can."""
        problems = self.graph.nodes[layer].problem, self.graph.nodes[norm].problem
        if problems not in self._together:
            began = self.context.problem_clock()
            try:
                self._together[problems] = chosen = self.context.choose_with_sums(*problems)
                for problem, each in zip(problems, chosen):
                    self.times[problem] = each.label, began, self.context.problem_clock()
            except (BuildError, Declined):
                self._together[problems] = None
        together = self._together[problems]
        if together is not None:
            first, second, nbytes = together
            self.sums[layer] = self.sums[norm] = LeftSums(layer, norm, nbytes, {layer: first, norm: second})

    @property
    def preparation(self) -> Preparation:
        """What has to run once before the launches do."""
        read = reads(self._taken)
        inputs = (value for value in self.graph.inputs if value.name in read)
        arguments = tuple(Argument(value.name, "in", value.shape, value.dtype) for value in inputs)
        return Preparation(tuple(self._taken), self._sizes, arguments)

    def launches(self) -> tuple[Launches, int]:
        """Return all launches, and the size of the arena in bytes."""
        lives = self._lives()
        offsets, arena = place([life for life in lives if not self._is_private(life)])
        private, more = place([life for life in lives if self._is_private(life)])
        offsets.update((name, arena + offset) for name, offset in private.items())
        arena += more
        bound: list[Launch] = []
        ran: list[int] = []  # the node of each launch
        for i, (node, planned) in enumerate(zip(self.graph.nodes, self.planned)):
            for launch in planned.launches:
                if launch.writes and all(node.named(name) == SKIPPED for name in launch.writes):
                    continue
                arguments = tuple(self._bind(item, i, node, offsets) for item in launch.arguments)
                bound.append(replace(launch, arguments=arguments, writes=()))
                ran.append(i)
        bound = self._on_lanes(bound, ran)
        for name in self.copied:
            bound += self._copy(name, offsets)
        return Launches(tuple(bound), arena), arena

    def _is_private(self, life: Life) -> bool:
        """Return whether something is used by one node of the second queue alone, whose order its memory has."""
        return self.lanes is not None and life.first == life.last and self.lanes.second[life.first]

    def _on_lanes(self, bound: Sequence[Launch], nodes: Sequence[int]) -> list[Launch]:
        """Return launches with their queues, and with what they wait for of the other one.

        Parameters
        ----------
        bound : sequence of Launch
        nodes : sequence of int
            The node of each launch.
        """
        if self.lanes is None:
            return list(bound)
        found: list[Launch] = []
        needed, seen, count = [-1, -1], 0, 0  # the node that each queue has to wait for next
        numbers: tuple[list[tuple[int, int]], ...] = ([], [])  # of the launches of each queue: their nodes and numbers
        for launch, node in zip(bound, nodes):
            if 0 in launch.global_size:  # it is none of the runtime's
                found.append(launch)
                continue
            for before in range(seen, node + 1):  # views among them wait with the next launch
                lane = self.lanes.second[before]
                needed[lane] = max(needed[lane], self.lanes.after[before])
            seen, lane, after = node + 1, self.lanes.second[node], 0
            if needed[lane] >= 0:
                after = max((number + 1 for other, number in numbers[not lane] if other <= needed[lane]), default=0)
                needed[lane] = -1
            if lane and not numbers[True] and not after:  # nothing orders it after the run before
                return list(bound)
            found.append(replace(launch, lane=int(lane), after=after))
            numbers[lane].append((node, count))
            count += 1
        return found

    def _lives(self) -> list[Life]:
        graph, lives = self.graph, self.homes.lives(self.graph)
        for i, (node, planned) in enumerate(zip(graph.nodes, self.planned)):
            if i in self.sums and i == self.sums[i].layer:
                lives.append(Life(f"{i} sums", self.sums[i].nbytes, i, self.sums[i].norm))
            if planned.workspace_bytes:
                lives.append(Life(f"{i} workspace", planned.workspace_bytes, i, i))
            for argument, name in zip(node.problem.arguments(), node.arguments):
                if name == SKIPPED:
                    lives.append(Life(f"{i} {argument.name}", argument.nbytes, i, i))
        return lives

    def _bind(self, item: Any, i: int, node: Node, offsets: Mapping[str, int]) -> Any:
        if isinstance(item, Kept):
            return Buffer(item.name)
        if isinstance(item, (Buffer, Accumulate)):
            name = node.named(item.name)
            inside = name not in self.arguments
            if isinstance(item, Accumulate):
                return Constant(np.int32(0)) if inside else Accumulate(name)
            if not inside:
                return Buffer(name)
            dtype = next(a.dtype for a in node.problem.arguments() if a.name == item.name)
            if name == SKIPPED:
                return Workspace(offsets[f"{i} {item.name}"], np.dtype(dtype).itemsize)
            return self._place(name, np.dtype(dtype).itemsize, offsets)
        if isinstance(item, Statistics):
            return Workspace(offsets[f"{self.sums[i].layer} sums"])
        if isinstance(item, OfNorm):
            norm = self.sums[i].norm
            return self._bind(item.item, norm, self.graph.nodes[norm], offsets)
        if isinstance(item, Workspace):
            return Workspace(offsets[f"{i} workspace"] + item.offset_bytes, item.itemsize)
        if isinstance(item, Scalar):
            value = node.scalars[node.problem.scalars().index(item.name)]
            return Scalar(value, item.dtype) if isinstance(value, str) else Constant(np.dtype(item.dtype).type(value))
        return item

    def _place(self, name: str, itemsize: int, offsets: Mapping[str, int]) -> Buffer | Workspace:
        """Return where a value inside of the graph lies: in the arena, or in an input."""
        home = self.homes.places[name]
        if home.name in self.arguments:
            return Buffer(home.name, home.offset)
        return Workspace(offsets[home.name] + home.offset, itemsize)

    def _copy(self, name: str, offsets: Mapping[str, int]) -> list[Launch]:
        """Return the launches that add a value in the arena to the output of its name."""
        value = self.graph.values[name]
        problem = identity(value)
        names = {argument.name: argument.role for argument in problem.arguments()}
        source = self._place(name, np.dtype(value.dtype).itemsize, offsets)

        def bind(item: Any) -> Any:
            if isinstance(item, Buffer):
                return source if names[item.name] == "in" else Buffer(name)
            if isinstance(item, Workspace):
                raise ProblemError(f"[graph] got a copy of {name} with a workspace, expected none")
            return Accumulate(name) if isinstance(item, Accumulate) else item

        launches = self.context.choose(problem).launches.launches
        return [replace(launch, arguments=tuple(map(bind, launch.arguments)), writes=()) for launch in launches]
