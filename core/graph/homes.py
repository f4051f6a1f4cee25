"""In whose memory each value of a graph lies: results over their inputs, parts inside of wholes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from clgraft.core.graph.lanes import Lanes
from clgraft.core.graph.memory import Life
from clgraft.core.graph.structure import SKIPPED, Node, Structure
from clgraft.core.operators.copying import ConcatProblem, SliceProblem, TransposeProblem
from clgraft.core.operators.copying.boxes import Box, steps


@dataclass(frozen=True)
class Home:
    """A place: so many bytes after the begin of a value's memory."""

    name: str
    offset: int = 0


@dataclass(frozen=True)
class Homes:
    """The memory plan before anything has an address.

    Attributes
    ----------
    places : mapping of str to Home
        Where each value inside of the graph lies. The value of a home lies in its own memory; it may be an input.
    begins, ends : mapping of str to int
        The first and the last node that need memory for each value inside of the graph.
    views : frozenset of int
        Copies that have nothing to do: their results lie in their inputs, or their inputs in their results.
    """

    places: Mapping[str, Home]
    begins: Mapping[str, int]
    ends: Mapping[str, int]
    views: frozenset[int]

    @classmethod
    def of(
        cls,
        graph: Structure,
        outside: set[str],
        kept: tuple[str, ...],
        views: bool = True,
        lanes: Lanes | None = None,
    ) -> Homes:
        """Plan the homes of a graph's values.

        Parameters
        ----------
        graph : Graph
        outside : set of str
            Values in memory of the caller, which have no home.
        kept : tuple of str
            Values inside that live until all nodes have run.
        views : bool
            Whether copies may become views.
        lanes : Lanes, optional
            Which nodes run on a second queue: what these touch needs its memory for as long as they may run.
        """
        last = len(graph.nodes)
        ends = {
            name: last if name in kept else max(graph.readers[name], default=writer)
            for name, writer in graph.writers.items()
            if name not in outside
        }
        begins = {name: lanes.begins[graph.writers[name]] if lanes else graph.writers[name] for name in ends}
        for node, second, end in zip(graph.nodes, lanes.second, lanes.ends) if lanes else ():
            for name in (*node.reads, *node.writes) if second else ():
                if name in ends:
                    ends[name] = max(ends[name], end)
        saved, parts = _views(graph, ends, outside) if views else ({}, {})
        places = {name: _resolved(name, parts) for name in ends}
        related = set(parts) | {home.name for home in parts.values()}
        _in_place(graph, ends, places, related)
        return cls(places, begins, ends, frozenset(saved))

    def lives(self, graph: Structure) -> list[Life]:
        """Return the values that need memory of their own, and when: as long as any value in it lives."""
        guests: dict[str, list[str]] = {}
        for name, home in self.places.items():
            if home.name in self.places:
                guests.setdefault(home.name, []).append(name)
        return [
            Life(
                home,
                graph.values[home].nbytes,
                min(self.begins[name] for name in names),
                max(self.ends[name] for name in names),
            )
            for home, names in guests.items()
        ]


def _resolved(name: str, parts: Mapping[str, Home]) -> Home:
    """Follow parts of parts to the value that has memory of its own."""
    offset = 0
    while name in parts:
        offset += parts[name].offset
        name = parts[name].name
    return Home(name, offset)


def _in_place(graph: Structure, ends: Mapping[str, int], places: dict[str, Home], related: set[str]) -> None:
    """Let results lie in the memory of an input that nobody reads later, where the problem allows that.

    Parts and wholes take no part in that: their memory has other values.
    """
    for i, node in enumerate(graph.nodes):
        free = {
            argument: name
            for argument, name in node.values.items()
            if ends.get(name) == i and name not in related and node.reads.count(name) == 1
        }
        for argument, name in node.values.items() if free else ():
            if name not in places or name in related or name not in node.writes:
                continue
            for other in node.problem.replaced(argument):
                if other in free and graph.values[free[other]].dtype == graph.values[name].dtype:
                    places[name] = places[free.pop(other)]
                    break


def _views(graph: Structure, ends: Mapping[str, int], outside: set[str]) -> tuple[set[int], dict[str, Home]]:
    """Return the copies that are views, and for each part the whole that it lies in.

    A part may lie in an input as long as no output is written: an output may have the input's memory.
    """
    saved: set[int] = set()
    parts: dict[str, Home] = {}
    inputs = {value.name for value in graph.inputs}
    written = [i for i, node in enumerate(graph.nodes) if not outside.isdisjoint(node.writes)]
    for i, node in enumerate(graph.nodes):
        if not isinstance(node.problem, (ConcatProblem, SliceProblem, TransposeProblem)):
            continue
        found = _parts_of(graph, node)
        if found is None:
            continue
        wholes = {home.name for home in found.values()}
        lent = not inputs.isdisjoint(_resolved(name, parts).name for name in wholes)
        if lent and any(i < writer <= ends.get(name, i) for name in found for writer in written):
            continue
        if set(found) <= set(ends) and wholes <= set(ends) | inputs and not set(found) & set(parts):
            parts.update(found)
            saved.add(i)
    return saved, parts


def _parts_of(graph: Structure, node: Node) -> dict[str, Home] | None:
    """Return in which whole, and where, the parts of a copy can lie; None if it has to move elements."""
    found: dict[str, Home] = {}
    problem = node.problem
    size = np.dtype(problem.dtype).itemsize
    for box in problem.boxes():
        if not math.prod(box.shape):
            continue
        if not _together(box):
            return None
        x, y = node.named(box.x), node.named(box.y)
        if y == SKIPPED:
            continue
        count = math.prod(box.shape)
        if count == graph.values[y].size:
            part, whole, offset = y, x, box.x_begin
        elif count == graph.values[x].size:
            part, whole, offset = x, y, box.y_begin
        else:
            return None
        if part in found or part == whole:
            return None
        found[part] = Home(whole, offset * size)
    return found or None


def _together(box: Box) -> bool:
    """Return whether a box is one piece of memory on both sides."""
    pairs = zip(box.shape, box.x_steps, box.y_steps, steps(box.shape))
    return bool(box.x) and not box.adds and all(size == 1 or x == y == own for size, x, y, own in pairs)
