"""Drops problems whose results nobody reads."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from clgraft.core.graph.structure import SKIPPED, Node, Some


def drop_dead(graph: Some) -> Some:
    """Return the graph without problems, and without outputs of problems, that no output and no state needs."""
    needed = set(graph.outputs)
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if not (node.changes or needed & set(node.writes)):
            continue
        pairs = zip(node.problem.arguments(), node.arguments)
        names = tuple(SKIPPED if a.role == "out" and name not in needed else name for a, name in pairs)
        kept.append(replace(node, arguments=names))
        needed |= set(node.reads)
    return graph.with_nodes(reversed(kept))


def needed(graph: Some, outputs: Collection[str]) -> Some:
    """Return what some outputs of a graph need of it, with the inputs and scalars that are read."""
    graph = drop_dead(graph.with_outputs(outputs))
    read = {name for node in graph.nodes for name in (*node.reads, *node.scalars)}
    inputs = tuple(value for value in graph.inputs if value.name in read)
    return replace(graph, inputs=inputs, scalars=tuple(name for name in graph.scalars if name in read))
