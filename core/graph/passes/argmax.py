"""Lets max pooling note where its maxima stand, so that its gradient reads a byte for each instead of x and y."""

from __future__ import annotations

from dataclasses import replace

from clgraft.core.graph.structure import Node, Some
from clgraft.core.operators.pooling import PoolProblem


def keep_argmax(graph: Some) -> Some:
    """Return the graph with gradients of max pooling that read the argmax which the pooling in the graph keeps.

    The bits stay the same. The gradient moves fewer bytes, and x and y may end earlier.
    """
    nodes = list(graph.nodes)
    taken = set(graph.values)
    kept: dict[int, str] = {}  # a pooling -> its argmax
    for i, node in enumerate(graph.nodes):
        problem = node.problem
        if not (isinstance(problem, PoolProblem) and problem.direction == "backward" and problem.keeps_argmax):
            continue
        x, y, dy, dx = node.arguments
        number = graph.writers.get(y, i)
        pooling = graph.nodes[number]
        own = pooling.problem
        if not (isinstance(own, PoolProblem) and own.direction == "forward" and pooling.arguments == (x, y)):
            continue
        if own.with_direction("backward") != problem:
            continue
        if number not in kept:
            kept[number] = _fresh(f"{y}.argmax", taken)
            forward = own.with_direction("forward_argmax")
            nodes[number] = replace(pooling, problem=forward, arguments=(x, y, kept[number]))
        nodes[i] = Node(problem.with_direction("backward_argmax"), (kept[number], dy, dx))
    return graph.with_nodes(nodes) if kept else graph


def _fresh(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    taken.add(name)
    return name
