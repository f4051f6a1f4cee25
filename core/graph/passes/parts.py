"""Runs neighbouring problems in parts of the batch, so that the values between them stay in the caches of a CPU.

A value that is larger than the caches is written to memory and read again. Of a few images it is small enough: all
problems of a segment run for the first images, then for the next, in the same small memory. What enters the segment is
cut by slices, and what leaves it is joined by concatenations; the memory plan makes views of both.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from clgraft.core.graph.structure import SKIPPED, Fits, Node, Some, Structure, fresh
from clgraft.core.operators.copying import ConcatProblem, SliceProblem
from clgraft.core.operators.fused import FusedProblem
from clgraft.core.operators.pointwise import PointwiseProblem
from clgraft.core.operators.separable import SeparableProblem
from clgraft.core.planning.device import DeviceInfo
from clgraft.core.problem import DTYPES, Problem

# measured on two and on 16 cores; only CPU devices run in parts
BANDWIDTH = 30e9  # bytes that reach memory or come from it in a second with one core,
CORES = 0.4  # which grows with this power of their number: 40 GB/s with two, 91 with 16
OPERATIONS = 2e10  # that a lane of a core's vectors computes in a second at most
SHARE = 2 / 3  # of the bytes of which something stays in the caches: so many stay altogether
MARGIN = 2  # times that a segment has to save more than it costs: what it saves is a rough estimate
LEAST_GAIN = 200e-6  # seconds: less is not worth the longer plan
LEAST_SHARE = 0.1  # of the time of a segment: other sizes may suit a layer's kernels less


@dataclass(frozen=True)
class Segment:
    """Nodes of a graph that run in parts: their numbers in order, and the number of parts."""

    nodes: tuple[int, ...]
    count: int


def split_batch(
    graph: Some,
    device: DeviceInfo,
    constants: Collection[str] = (),
    fits: Fits | None = None,
    counts: dict[str, int] | None = None,
) -> Some:
    """Return the graph with segments that run in parts of the batch, where that saves time on a device.

    Parameters
    ----------
    graph : Graph
    device : DeviceInfo
    constants : collection of str, optional
        Inputs that never change: what kernels pack of them is packed once for all parts.
    fits : callable, optional
        Whether the device serves a `FusedProblem` without losing a faster implementation of the layer, and a
        `SeparableProblem` by one kernel.
    counts : dict, optional
        Gets the number of problems that run in parts, each part counted.
    """
    if not device.is_cpu or device.host_access == "staged" or not device.cache_bytes or not _of_inference(graph):
        return graph
    costs = Costs(graph, device, constants)
    segments = chosen(costs)
    while fits is not None and _refuse(costs, segments, fits):
        segments = chosen(costs)
    if counts is not None:
        counts["parts"] = sum(len(segment.nodes) * segment.count for segment in segments)
    return in_parts(graph, segments)


def peaks(device: DeviceInfo) -> tuple[float, float]:
    """Return about how many bytes a CPU moves and how many operations it computes in a second at most."""
    cores = device.compute_units
    return BANDWIDTH * cores**CORES, OPERATIONS * cores * device.vector_width


def _of_inference(graph: Structure) -> bool:
    """Return whether nothing changes a state and nothing computes gradients, which read most values much later."""
    return not any(
        node.changes or getattr(node.problem, "direction", "").startswith("backward") for node in graph.nodes
    )


def _refuse(costs: Costs, segments: list[Segment], fits: Fits) -> bool:
    """Note parts of chosen segments whose kernels do not do the whole's work, and return whether there are any."""
    found = {(costs.graph.nodes[i].problem, segment.count) for segment in segments for i in segment.nodes}
    joined = (FusedProblem, SeparableProblem)
    refused = {key for key in found if isinstance(costs.part(*key), joined) and not fits(costs.part(*key))}
    costs.forbid(refused)
    return bool(refused)


def cut(problem: Problem, part: Problem) -> tuple[bool, ...]:
    """Return for each argument of a problem whether a part takes a piece of it, and not all."""
    return tuple(one.size != whole.size for one, whole in zip(part.arguments(), problem.arguments()))


# the choice


def chosen(costs: Costs) -> list[Segment]:
    """Return the segments that save the most time together."""
    line = costs.line
    best: list[tuple[float, tuple[Segment, ...]]] = [(0.0, ())]
    ending: list[list[tuple[float, int, int]]] = [[] for _ in range(len(line) + 1)]
    for count in costs.counts:
        for first in range(len(line)):
            for last, gain in costs.gains(first, count):
                ending[last + 1].append((gain, first, count))
    for end in range(1, len(line) + 1):
        options = [(best[first][0] + gain, first, count) for gain, first, count in ending[end]]
        most = max(options, default=(0.0, 0, 0))
        if most[0] > best[-1][0]:
            _, first, count = most
            best.append((most[0], (*best[first][1], Segment(tuple(line[first:end]), count))))
        else:
            best.append(best[-1])
    return list(best[-1][1])


class Costs:
    """What a graph's nodes cost as one batch and in parts.

    Parameters
    ----------
    graph : Graph
    device : DeviceInfo
    constants : collection of str
        Inputs that never change.
    """

    def __init__(self, graph: Structure, device: DeviceInfo, constants: Collection[str]) -> None:
        self.graph, self.room, self.constants = graph, SHARE * device.kept_in_caches, constants
        self.bandwidth, self.speed = peaks(device)
        self.launch = device.launch_cost
        self._steps: dict[tuple[int, int], _Step | None] = {}
        self.parts: dict[tuple[Problem, int], Problem | None] = {}

    @cached_property
    def line(self) -> list[int]:
        """The nodes that are layers or come after one; the others can run in front of any segment."""
        after: set[str] = set(self.graph.outputs)
        line = []
        for i, node in enumerate(self.graph.nodes):
            plain = isinstance(node.problem, PointwiseProblem)
            if not plain or not after.isdisjoint(node.arguments):
                after |= set(node.writes)
                line.append(i)
        return line

    @property
    def counts(self) -> list[int]:
        """Into how many parts the batch can be cut: the divisors of the largest value's outermost size."""
        written = [self.graph.values[name] for i in self.line for name in self.graph.nodes[i].writes]
        largest = max(written, key=lambda value: value.nbytes).shape if written else ()
        size = largest[0] if largest else 1
        return [count for count in range(2, size + 1) if size % count == 0]

    def forbid(self, parts: Collection[tuple[Problem, int]]) -> None:
        """Let no segment have these problems in so many parts."""
        self.parts.update((key, None) for key in parts)
        self._steps.clear()

    def part(self, problem: Problem, count: int) -> Problem | None:
        """Return a part of a problem; None if it cannot be cut."""
        key = problem, count
        if key not in self.parts:
            self.parts[key] = problem.part(count)
        return self.parts[key]

    def gains(self, first: int, count: int) -> Iterator[tuple[int, float]]:
        """Yield the last node of each segment that is worth it and begins at a node, and the seconds that it saves.

        Nodes are places in `line`.
        """
        gain = taken = 0.0
        written: set[str] = set()
        for place in range(first, len(self.line)):
            step = self._step(place, count)
            if step is None or not written.isdisjoint(step.whole):
                return
            written.update(step.written)
            gain += step.saved(first) - step.cost
            taken += step.seconds
            if gain > max(LEAST_GAIN, LEAST_SHARE * taken):
                yield place, gain

    def _step(self, place: int, count: int) -> _Step | None:
        """Return what a node needs and saves in parts; None if it cannot run in parts."""
        if (place, count) not in self._steps:
            self._steps[place, count] = self._step_of(place, count)
        return self._steps[place, count]

    def _step_of(self, place: int, count: int) -> _Step | None:
        node = self.graph.nodes[self.line[place]]
        part = self.part(node.problem, count)
        if part is None:
            return None
        arguments = list(zip(node.problem.arguments(), node.arguments, cut(node.problem, part)))
        for argument, name, piece in arguments:
            given_out = argument.role == "out" and (not piece or name in self.graph.outputs)
            if given_out or (piece and argument.dtype not in DTYPES):
                return None
        whole = {name: argument.nbytes for argument, name, piece in arguments if not piece}
        packed = any(argument.name == "w" and name not in self.constants for argument, name, piece in arguments)
        reads = sum(whole.values()) * (3 if packed else 1)  # packing reads and writes
        cost = MARGIN * (count - 1) * (self.launch * (2 if packed else 1) + reads / self.bandwidth)
        moved = tuple(
            (access.before, at_once / self.bandwidth, split / self.bandwidth)
            for access in self._accesses[place]
            for at_once, split in [access.moved(self.room, count)]
        )
        work = node.problem.operations / self.speed
        return _Step(frozenset(whole), node.writes, cost, work, moved)

    @cached_property
    def _accesses(self) -> list[list[_Access]]:
        """What each node of `line` reads, and what it is the last to read of what a node wrote."""
        values, nodes = self.graph.values, [self.graph.nodes[i] for i in self.line]
        touched = [sum(values[name].nbytes for name in {*node.reads, *node.writes}) for node in nodes]
        new = [sum(values[name].nbytes for name in node.writes) for node in nodes]
        latest: dict[str, int] = {}
        written: dict[str, _Access] = {}
        found: list[list[_Access]] = []
        for place, node in enumerate(nodes):
            own = []
            for name in dict.fromkeys(node.reads):
                nbytes, before = values[name].nbytes, latest.get(name)
                if before is None:
                    own.append(_Access(-1, nbytes, math.inf))
                    continue
                distance = (touched[before] + touched[place]) / 2 + sum(new[before + 1 : place])
                own.append(_Access(before, nbytes, distance))
                if name in nodes[before].writes:
                    written[name] = own[-1]
                if name in written and self.graph.readers[name][-1] == self.line[place]:
                    own.append(written[name])  # what stays in the caches up to here need not reach the memory
            found.append(own)
            latest.update((name, place) for name in (*node.reads, *node.writes))
        return found


@dataclass(frozen=True)
class _Access:
    """Bytes that a node reads, the place of the node that had them before, and how many bytes went by since then."""

    before: int
    nbytes: int
    distance: float

    def moved(self, room: float, count: int) -> tuple[float, float]:
        """Return the bytes that come from memory, and how many where a part is read before the next one is written."""
        first, second = (max(0.0, 1 - room / max(d, 1)) for d in (self.distance, self.distance / count))
        return self.nbytes * first, self.nbytes * second


@dataclass(frozen=True)
class _Step:
    """A node in parts.

    Attributes
    ----------
    whole : frozenset of str
        Values that every part reads whole.
    written : tuple of str
    cost, work : float
        Seconds that further parts cost, and that the arithmetic takes at least.
    moved : tuple of (int, float, float)
        For each access the node that had the bytes before, and seconds for the whole batch and in parts.
    """

    whole: frozenset[str]
    written: tuple[str, ...]
    cost: float
    work: float
    moved: tuple[tuple[int, float, float], ...]

    @property
    def seconds(self) -> float:
        """What the node takes for the whole batch."""
        return math.hypot(self.work, sum(seconds for _, seconds, _ in self.moved))

    def saved(self, first: int) -> float:
        """Return the seconds that the node saves in a segment that begins at a node.

        Arithmetic hides most of what memory takes where it takes longer itself.
        """
        parts = sum(split if before >= first else seconds for before, seconds, split in self.moved)
        return self.seconds - math.hypot(self.work, parts)


# the graph


def in_parts(graph: Some, segments: list[Segment]) -> Some:
    """Return the graph with segments in parts of the batch, each part's nodes one after the other.

    Nodes between those of a segment must not depend on it: they run in front of it.
    """
    if not segments:
        return graph
    nodes: list[Node] = []
    taken = set(graph.values)
    done = 0
    for segment in segments:
        own = set(segment.nodes)
        between = range(done, segment.nodes[-1] + 1)
        nodes += (graph.nodes[i] for i in between if i not in own)
        nodes += _split(graph, segment, taken)
        done = segment.nodes[-1] + 1
    return graph.with_nodes((*nodes, *graph.nodes[done:]))


def _split(graph: Structure, segment: Segment, taken: set[str]) -> Iterator[Node]:
    """Yield the nodes of a segment for each part of the batch, then those that join what leaves it."""
    count, own = segment.count, set(segment.nodes)
    parts: dict[str, list[str]] = {}
    written = [name for i in segment.nodes for name in graph.nodes[i].writes]

    def name_of(name: str, number: int) -> str:
        if name not in parts:
            parts[name] = [fresh(f"{name}.{k}", taken) for k in range(count)]
        return parts[name][number]

    for number in range(count):
        sliced: set[str] = set()
        for i in segment.nodes:
            node = graph.nodes[i]
            part = node.problem.part(count)
            assert part is not None
            names = []
            for argument, name, piece in zip(node.problem.arguments(), node.arguments, cut(node.problem, part)):
                if not piece or name == SKIPPED:
                    names.append(name)
                    continue
                own_name = name_of(name, number)
                names.append(own_name)
                if argument.role == "in" and name not in written and name not in sliced:
                    sliced.add(name)
                    size = argument.size // count
                    box = SliceProblem("forward", (count, size), (1, size), (number, 0), argument.dtype)
                    yield Node(box, (name, own_name))
            yield replace(node, problem=part, arguments=tuple(names))
    for name in written:
        if not set(graph.readers[name]) <= own:
            value = graph.values[name]
            whole = ConcatProblem("forward", 1, (value.size // count,) * count, 1, value.dtype)
            yield Node(whole, (*parts[name], name))
