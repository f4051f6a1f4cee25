"""Runs neighbouring problems in parts of the batch, so that the values between them stay in the caches of a CPU.

A value that is larger than the caches is written to memory and read again. Of a few images it is small enough: all
problems of a segment run for the first images, then for the next, in the same small memory. What enters the segment is
cut by slices, and what leaves it is joined by concatenations; the memory plan makes views of both.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from clgraft.core.graph.structure import SKIPPED, Node, Some, Structure, fresh
from clgraft.core.operators.copying import ConcatProblem, SliceProblem
from clgraft.core.operators.fused import FusedProblem
from clgraft.core.operators.pointwise import PointwiseProblem
from clgraft.core.planning.device import DeviceInfo
from clgraft.core.problem import DTYPES, Problem

# measured on two cores with 32 MiB of cache (PoCL 3); only CPU devices run in parts
LAUNCH = 25e-6  # seconds that a launch takes apart from its work
BANDWIDTH = 40e9  # bytes that reach memory or come from it in a second
LEAST_GAIN = 100e-6  # seconds: less is not worth the longer plan

Fits = Callable[[Problem], bool]


@dataclass(frozen=True)
class Segment:
    """Nodes of a graph that run in parts: their numbers in order, and the number of parts."""

    nodes: tuple[int, ...]
    count: int


def split_batch(graph: Some, device: DeviceInfo, constants: Collection[str] = (), fits: Fits | None = None) -> Some:
    """Return the graph with segments that run in parts of the batch, where that saves time on a device.

    Parameters
    ----------
    graph : Graph
    device : DeviceInfo
    constants : collection of str, optional
        Inputs that never change: what kernels pack of them is packed once for all parts.
    fits : callable, optional
        Whether the device serves a `FusedProblem` without losing a faster implementation of the layer.
    """
    if not device.is_cpu or device.host_access == "staged" or not device.cache_bytes or not _of_inference(graph):
        return graph
    costs = Costs(graph, device.kept_in_caches, constants)
    segments = chosen(costs)
    while fits is not None and _refuse(costs, segments, fits):
        segments = chosen(costs)
    return in_parts(graph, segments)


def _of_inference(graph: Structure) -> bool:
    """Return whether nothing changes a state and nothing computes gradients, which read most values much later."""
    return not any(
        node.changes or getattr(node.problem, "direction", "").startswith("backward") for node in graph.nodes
    )


def _refuse(costs: Costs, segments: list[Segment], fits: Fits) -> bool:
    """Note parts of chosen segments whose kernels do not do the whole's work, and return whether there are any."""
    found = {(costs.graph.nodes[i].problem, segment.count) for segment in segments for i in segment.nodes}
    refused = {key for key in found if isinstance(costs.part(*key), FusedProblem) and not fits(costs.part(*key))}
    costs.parts.update((key, None) for key in refused)
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
                if gain > LEAST_GAIN:
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
    room : int
        Bytes of which a reader still finds what was written before.
    constants : collection of str
        Inputs that never change.
    """

    def __init__(self, graph: Structure, room: int, constants: Collection[str]) -> None:
        self.graph, self.room, self.constants = graph, room, constants
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
        size = max(written, key=lambda value: value.nbytes).shape[:1] if written else ()
        return [count for count in range(2, (size or (1,))[0] + 1) if size[0] % count == 0]

    def part(self, problem: Problem, count: int) -> Problem | None:
        """Return a part of a problem; None if it cannot be cut."""
        key = problem, count
        if key not in self.parts:
            self.parts[key] = problem.part(count)
        return self.parts[key]

    def gains(self, first: int, count: int) -> Iterator[tuple[int, float]]:
        """Yield the last node of each segment that can begin at a node, and the seconds that it saves; in `line`."""
        gain, written = 0.0, set()
        for place in range(first, len(self.line)):
            node = self.graph.nodes[self.line[place]]
            part = self.part(node.problem, count)
            if part is None or not self._possible(node, cut(node.problem, part), written):
                return
            written |= set(node.writes)
            gain += self._saved(place, first, count) - (count - 1) * self._more(node, part)
            yield place, gain

    def _possible(self, node: Node, pieces: tuple[bool, ...], written: set[str]) -> bool:
        """Return whether a node can run in parts after nodes that write pieces of some values."""
        for argument, name, piece in zip(node.problem.arguments(), node.arguments, pieces):
            if argument.role == "out":
                if not piece or name in self.graph.outputs or argument.dtype not in DTYPES:
                    return False
            elif (piece and argument.dtype not in DTYPES) or (not piece and name in written):
                return False
        return True

    def _more(self, node: Node, part: Problem) -> float:
        """Return the seconds that each further part of a node costs: launches, and whole arguments read again."""
        whole = [
            (argument, name)
            for argument, name, piece in zip(part.arguments(), node.arguments, cut(node.problem, part))
            if not piece
        ]
        packs = any(argument.name == "w" and name not in self.constants for argument, name in whole)
        return LAUNCH * (1 + packs) + sum(argument.nbytes for argument, _ in whole) * (1 + 2 * packs) / BANDWIDTH

    @cached_property
    def _accesses(self) -> list[list[tuple[int, str, int, int]]]:
        """For each node, what it reads: (the place of the access before, value, bytes from there, bytes of the value)."""
        nodes = [self.graph.nodes[i] for i in self.line]
        touched = [
            sum(self.graph.values[name].nbytes for name in {*node.reads, *node.writes} - {SKIPPED}) for node in nodes
        ]
        new = [sum(self.graph.values[name].nbytes for name in node.writes) for node in nodes]
        latest: dict[str, int] = {}
        found: list[list[tuple[int, str, int, int]]] = []
        for place, node in enumerate(nodes):
            reads = []
            for name in dict.fromkeys(node.reads):
                if name in latest:
                    before, nbytes = latest[name], self.graph.values[name].nbytes
                    between = sum(new[before + 1 : place])
                    reads.append((before, name, (touched[before] + touched[place]) // 2 + between, nbytes))
            found.append(reads)
            latest.update((name, place) for name in (*node.reads, *node.writes))
        return found

    @cached_property
    def _written(self) -> dict[str, tuple[int, int]]:
        """For each value, the place of its writer and the bytes from there to its first reader."""
        found: dict[str, tuple[int, int]] = {}
        for reads in self._accesses:
            for before, name, distance, _ in reads:
                if name in self.graph.writers:
                    found.setdefault(name, (before, distance))
        return found

    def _saved(self, place: int, first: int, count: int) -> float:
        """Return the seconds that a node saves by reading from the caches what nodes of its segment have touched."""
        saved = 0.0
        for before, name, distance, nbytes in self._accesses[place]:
            if before < first:
                continue
            saved += nbytes * (self._missed(distance) - self._missed(distance / count))
            writer, way = self._written.get(name, (-1, 0))
            if writer >= first and self.graph.readers[name][-1] == self.line[place]:
                saved += nbytes * (self._missed(way) - self._missed(way / count))  # it need not be written at all
        return saved / BANDWIDTH

    def _missed(self, distance: float) -> float:
        """Return the share of a value that left the caches since so many bytes."""
        return max(0.0, 1 - self.room / distance) if distance else 0.0


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
