"""Computes cheap values again for late readers, so that no memory holds them in between."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from clgraft.core.graph.structure import SKIPPED, Node, Some, Structure
from clgraft.core.operators.batchnorm import BatchNormProblem
from clgraft.core.operators.pointwise import PointwiseProblem

MOST_COPIES = 3  # of one value: each is one more computation


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
        chosen = None if lowest <= enough else _chosen(graph, moment, original)
        if chosen is None:
            break
        graph, copy = _computed_again(graph, chosen, moment)
        original[copy] = original.get(chosen, chosen)
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


def _chosen(graph: Structure, moment: int, original: dict[str, str]) -> str | None:
    """Return the value that saves the most memory at a moment; None if none does."""
    spans = _spans(graph)
    found: list[tuple[int, str]] = []
    for name, (first, last) in spans.items():
        if not first < moment < last or moment in graph.readers[name] or not _cheap(graph, name):
            continue
        if sum(original.get(copy) == original.get(name, name) for copy in original) >= MOST_COPIES:
            continue
        again = next(reader for reader in graph.readers[name] if reader > moment)
        longer = [read for read in _source(graph, name).reads if read in spans and spans[read][1] < again]
        saved = graph.values[name].nbytes - sum(graph.values[read].nbytes for read in longer)
        if saved > 0:
            found.append((saved, name))
    return max(found)[1] if found else None


def _source(graph: Structure, name: str) -> Node:
    return graph.nodes[graph.writers[name]]


def _cheap(graph: Structure, name: str) -> bool:
    """Return whether a value is computed in one pass over memory from values that do not change."""
    node = _source(graph, name)
    problem = node.problem
    if {state.name for state in graph.states} & set(node.reads):
        return False
    if isinstance(problem, PointwiseProblem):
        return not any(problem.reductions) and not problem.beta and problem.program.outputs == 1
    if not isinstance(problem, BatchNormProblem) or not problem.direction.startswith("forward"):
        return False
    if problem.direction == "forward_inference":
        return True
    return name == node.named("y") and SKIPPED not in (node.named("mean"), node.named("var"))


def _computed_again(graph: Some, name: str, moment: int) -> tuple[Some, str]:
    """Return the graph with a copy of a value in front of its first reader after a moment, for all readers from there.

    The second result is the copy's name.
    """
    node = _source(graph, name)
    copy = f"{name}.again"
    while copy in graph.values:
        copy += "_"
    nodes: list[Node] = []
    added = False
    for i, reader in enumerate(graph.nodes):
        if i > moment and name in reader.reads:
            if not added:
                nodes.append(_copied(node, name, copy))
                added = True
            reader = replace(reader, arguments=tuple(copy if value == name else value for value in reader.arguments))
        nodes.append(reader)
    return graph.with_nodes(nodes), copy


def _copied(node: Node, name: str, copy: str) -> Node:
    problem = node.problem
    if isinstance(problem, BatchNormProblem) and problem.direction == "forward_training":
        again = problem.with_direction("forward_inference")  # with the batch's own statistics
        read = tuple(node.named(argument.name) for argument in again.arguments()[:-1])
        return Node(again, (*read, copy), node.scalars)
    return replace(node, arguments=tuple(copy if value == name else value for value in node.arguments))
