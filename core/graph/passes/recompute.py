"""Computes cheap values again for late readers, so that no memory holds them in between."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from clgraft.core.graph.structure import SKIPPED, Node, Some, Structure
from clgraft.core.operators.batchnorm import BatchNormProblem
from clgraft.core.operators.pointwise import PointwiseProblem

MOST_COPIES = 3  # copies of one value: each is one more computation
LONGEST = 3  # values that are computed again for another one, one after the other
AT_ONCE = 8  # values that are chosen at one moment before memory is looked at again


def recompute(graph: Some, enough: int = 0) -> Some:
    """Return the graph with pointwise values and batch norms computed again for readers after the peak of memory.

    At the moment when the values inside of the graph take the most memory, the value is chosen that saves the most by
    living in two short times instead of a long one, until nothing saves any more, or the peak is low `enough`. Inputs
    of what is computed again may have to live longer: that counts against it.

    Parameters
    ----------
    graph : Graph
    enough : int
        Bytes of values that may be alive at the same time.
    """
    best = graph
    moment, lowest = _peak(graph)
    original: dict[str, str] = {}
    for _ in range(len(graph.nodes)):
        chosen = [] if lowest <= enough else _chosen(graph, moment, original)
        if not chosen:
            break
        graph, copies = _computed_again(graph, chosen, moment)
        original.update((copy, original.get(name, name)) for name, copy in copies.items())
        moment, alive = _peak(graph)
        if alive < lowest:
            best, lowest = graph, alive
    return best


def _spans(graph: Structure) -> dict[str, tuple[int, int]]:
    """Return the first and the last node of each value that takes memory inside of the graph."""
    return {
        name: (writer, max(graph.readers[name], default=writer))
        for name, writer in graph.writers.items()
        if name not in graph.outputs
    }


def _peak(graph: Structure) -> tuple[int, int]:
    """Return the node at which the values inside of the graph take the most memory, and how many bytes that is."""
    change = np.zeros(len(graph.nodes) + 1, np.int64)
    for name, (first, last) in _spans(graph).items():
        change[first] += graph.values[name].nbytes
        change[last + 1] -= graph.values[name].nbytes
    alive = np.cumsum(change)
    moment = int(alive.argmax())
    return moment, int(alive[moment])


def _chosen(graph: Structure, moment: int, original: dict[str, str]) -> list[str]:
    """Return the values that save the most memory at a moment and have nothing to do with each other."""
    spans = _spans(graph)
    found: list[tuple[int, str]] = []
    copies = Counter(original.values())
    for name, (first, last) in spans.items():
        if not first < moment < last or moment in graph.readers[name] or not _cheap(graph, name):
            continue
        if copies[original.get(name, name)] >= MOST_COPIES:
            continue
        again = next(reader for reader in graph.readers[name] if reader > moment)
        _, longer = _chain(graph, name, again, spans)
        saved = graph.values[name].nbytes - sum(graph.values[read].nbytes for read in longer)
        if saved > 0:
            found.append((saved, name))
    chosen: list[str] = []
    touched: set[str] = set()
    for _, name in sorted(found, reverse=True):
        chain, _ = _chain(graph, name, spans[name][1], spans)
        near = {name, *chain, *(read for part in (name, *chain) for read in _source(graph, part).reads)}
        if len(chosen) < AT_ONCE and not near & touched:
            chosen.append(name)
            touched |= near
    return chosen


def _chain(
    graph: Structure, name: str, again: int, spans: Mapping[str, tuple[int, int]], depth: int = LONGEST
) -> tuple[tuple[str, ...], frozenset[str]]:
    """Return the values that have to be computed before one is computed again at a node, and those that live longer.

    What is not there any more and is cheap itself is computed again, too.
    """
    chain: tuple[str, ...] = ()
    longer: frozenset[str] = frozenset()
    for read in dict.fromkeys(_source(graph, name).reads):
        if read not in spans or spans[read][1] >= again:
            continue
        if depth and _cheap(graph, read):
            before, more = _chain(graph, read, again, spans, depth - 1)
            chain += tuple(value for value in (*before, read) if value not in chain)
            longer |= more
        else:
            longer |= {read}
    return chain, longer


def _source(graph: Structure, name: str) -> Node:
    return graph.nodes[graph.writers[name]]


def _cheap(graph: Structure, name: str) -> bool:
    """Return whether a value is computed in one pass over memory from values that do not change."""
    node = _source(graph, name)
    problem = node.problem
    end = graph.changing_end
    if graph.changes_between(node.reads, 0, end) or max(graph.readers[name], default=0) >= end:
        return False
    if isinstance(problem, PointwiseProblem):
        return not any(problem.reductions) and not problem.beta and problem.assignments.outputs == 1
    if not isinstance(problem, BatchNormProblem) or not problem.direction.startswith("forward"):
        return False
    if problem.direction == "forward_inference":
        return True
    return name == node.named("y") and SKIPPED not in (node.named("mean"), node.named("var"))


def _computed_again(graph: Some, names: Sequence[str], moment: int) -> tuple[Some, dict[str, str]]:
    """Return the graph with copies of values for all their readers after a moment, in front of the first of these.

    The second result has the copies' names.
    """
    copies: dict[str, str] = {}
    for name in names:
        copy = f"{name}.again"
        while copy in graph.values or copy in copies.values():
            copy += "_"
        copies[name] = copy
    nodes: list[Node] = []
    waiting, spans = set(names), _spans(graph)
    for i, reader in enumerate(graph.nodes):
        if i > moment:
            for name in reader.reads:
                if name in waiting:
                    waiting.discard(name)
                    chain, _ = _chain(graph, name, i, spans)
                    own = {value: f"{copies[name]}.{number}" for number, value in enumerate(chain)}
                    own[name] = copies[name]
                    nodes += (_copied(_source(graph, value), value, own) for value in (*chain, name))
            read = set(reader.reads)
            renamed = tuple(copies[value] if value in copies and value in read else value for value in reader.arguments)
            reader = replace(reader, arguments=renamed)
        nodes.append(reader)
    return graph.with_nodes(nodes), copies


def _copied(node: Node, name: str, copies: Mapping[str, str]) -> Node:
    """Return a node that computes one value of a node again, from copies where there are some."""
    problem = node.problem
    if isinstance(problem, BatchNormProblem) and problem.direction == "forward_training":
        again = problem.with_direction("forward_inference")  # with the batch's own statistics
        read = (node.named(argument.name) for argument in again.arguments()[:-1])
        return Node(again, (*(copies.get(value, value) for value in read), copies[name]), node.scalars)
    return replace(node, arguments=tuple(copies.get(value, value) for value in node.arguments))
