"""Computes equal problems of equal values once."""

from __future__ import annotations

from dataclasses import replace

from clgraft.core.graph.structure import SKIPPED, Node, Some
from clgraft.core.problem import Problem


def drop_duplicates(graph: Some) -> Some:
    """Return the graph without problems that an earlier node has computed from the same values.

    A problem that reads or changes a state is never taken for another one's duplicate.
    """
    states = {state.name for state in graph.states}
    first: dict[tuple[Problem, tuple[str, ...], tuple], list[int]] = {}
    renamed: dict[str, str] = {}
    kept: list[Node] = []
    for node in graph.nodes:
        pairs = list(zip(node.problem.arguments(), node.arguments))
        node = replace(node, arguments=tuple(renamed.get(n, n) if a.role != "out" else n for a, n in pairs))
        written = [i for i, (a, _) in enumerate(pairs) if a.role == "out"]
        blocked = states & set(node.reads) or any(node.arguments[i] in graph.outputs for i in written)
        key = (node.problem, node.reads, node.scalars)
        places = [] if blocked else first.setdefault(key, [])
        if not places:
            places.append(len(kept))
            kept.append(node)
            continue
        twin = kept[places[0]]
        names = list(twin.arguments)
        for i in written:
            if names[i] == SKIPPED:
                names[i] = node.arguments[i]
            elif node.arguments[i] != SKIPPED:
                renamed[node.arguments[i]] = names[i]
        kept[places[0]] = replace(twin, arguments=tuple(names))
    return graph.with_nodes(kept)
